// The tutorial: a small GPT that learns to write licence texts, on any number of ranks, through
// crashes, hangs and lost machines.
//
// It is an ordinary libtorch training program; what Perdure adds is in the last section. Read from
// there upwards, or run it first (from the build tree's parent; the loss falls from 4.6 to below
// 2.5):
//
//   build/bin/train_gpt --steps 100                     one process, no supervisor, no checkpoints
//   build/bin/perdure run examples/train_gpt.yaml       4 ranks on 2 simulated nodes, 1 spare
//   examples/ranks.sh 4 build/bin/train_gpt             4 ranks started as torchrun would start
//   them
//
// While the second runs, kill something, from another terminal:
//
//   build/bin/perdure chaos kill --rank 3               or: kill -9 any process of the job
//   build/bin/perdure events --follow                   what the supervisor sees, decides, and why
//
// Every generation goes on from the newest committed checkpoint. The losses that rank 0 appends to
// loss.csv (step, generation, loss as a hexadecimal float) are those of an undisturbed run, bit for
// bit: for each step take the line of the last generation that ran it.
//
// Options:
//   --data FILE...     texts to learn from (default: the files in /usr/share/common-licenses)
//   --steps N          optimizer steps (400)
//   --batch N          samples per step over all ranks (8)
//   --seed N           of weights, dropout and sample order (1)
//   --loss-file FILE   (loss.csv)
#include <perdure/perdure.h>
#include <perdure/torch.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

// ------------------------------------------------------------------------------------- options

struct Options {
  std::vector<std::string> data;
  std::int64_t steps = 400;
  std::int64_t batch = 8;
  std::int64_t seed = 1;
  std::string loss_file = "loss.csv";
};

perdure::Status Usage(const std::string& message) {
  return {perdure::Code::kInvalidArgument, "train_gpt: " + message};
}

perdure::Result<std::int64_t> ParseNumber(const std::string& option, const std::string& text,
                                          std::int64_t least) {
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < least) {
    return Usage(option + " needs a whole number of at least " + std::to_string(least) +
                 ", not \"" + text + "\"");
  }
  return number;
}

perdure::Result<Options> ParseOptions(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    std::string name = argv[i];
    std::replace(name.begin(), name.end(), '_', '-');  // --loss_file is --loss-file
    if (i + 1 >= argc) return Usage(name + " needs a value (see the top of 05_train_gpt.cc)");
    if (name == "--data") {
      while (i + 1 < argc && std::strncmp(argv[i + 1], "--", 2) != 0) {
        options.data.emplace_back(argv[++i]);
      }
    } else if (name == "--loss-file") {
      options.loss_file = argv[++i];
    } else if (name == "--steps") {
      PERDURE_ASSIGN_OR_RETURN(options.steps, ParseNumber(name, argv[++i], 0));
    } else if (name == "--batch") {
      PERDURE_ASSIGN_OR_RETURN(options.batch, ParseNumber(name, argv[++i], 1));
    } else if (name == "--seed") {
      PERDURE_ASSIGN_OR_RETURN(options.seed, ParseNumber(name, argv[++i], 0));
    } else {
      return Usage("unknown option " + name +
                   "; known are --data --steps --batch --seed --loss-file");
    }
  }
  return options;
}

// ---------------------------------------------------------------------------------------- data

// A text as samples: sample i is the i-th window of `context` characters, and what to predict is
// the same window one character further on.
class Corpus {
 public:
  static constexpr std::int64_t kContext = 64;

  static perdure::Result<Corpus> Read(std::vector<std::string> files) {
    if (files.empty()) {
      PERDURE_ASSIGN_OR_RETURN(files, LicenceTexts());
    }
    std::string text;
    std::set<std::string> seen;
    for (const std::string& file : files) {
      std::ifstream stream(file, std::ios::binary);
      std::string content((std::istreambuf_iterator<char>(stream)),
                          std::istreambuf_iterator<char>());
      if (!stream.good() && !stream.eof()) return Usage("cannot read " + file);
      if (seen.insert(content).second) text += content;
    }
    if (static_cast<std::int64_t>(text.size()) <= kContext) {
      return Usage("the texts hold " + std::to_string(text.size()) +
                   " characters, needs more than " + std::to_string(kContext) +
                   "; give larger files with --data");
    }
    return Corpus(text);
  }

  std::int64_t size() const { return (tokens_.size(0) - 1) / kContext; }
  std::int64_t vocabulary() const { return vocabulary_; }
  // Says which samples these are: a checkpoint of a run on other texts is refused.
  const std::string& id() const { return id_; }

  torch::data::Example<> Get(const std::vector<std::int64_t>& samples) const {
    std::vector<torch::Tensor> inputs;
    std::vector<torch::Tensor> targets;
    for (const std::int64_t sample : samples) {
      inputs.push_back(tokens_.narrow(0, sample * kContext, kContext));
      targets.push_back(tokens_.narrow(0, sample * kContext + 1, kContext));
    }
    return {torch::stack(inputs), torch::stack(targets)};
  }

 private:
  explicit Corpus(const std::string& text) {
    std::array<std::int64_t, 256> token_of{};
    for (const char c : text) token_of[static_cast<unsigned char>(c)] = 1;
    for (std::int64_t& token : token_of) token = token != 0 ? vocabulary_++ : -1;

    tokens_ = torch::empty({static_cast<std::int64_t>(text.size())}, torch::kInt64);
    std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      tokens_.data_ptr<std::int64_t>()[i] = token_of[byte];
      hash = (hash ^ byte) * 0x100000001b3u;
    }
    std::array<char, 17> hex{};
    std::snprintf(hex.data(), hex.size(), "%016llx", static_cast<unsigned long long>(hash));
    id_ = "text fnv1a64 " + std::string(hex.data()) + ", windows of " + std::to_string(kContext);
  }

  // The licence texts that every Debian machine carries, by name; links to them are left out.
  static perdure::Result<std::vector<std::string>> LicenceTexts() {
    const char* const directory = "/usr/share/common-licenses";
    std::vector<std::string> files;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
      if (entry.is_regular_file(error) && !entry.is_symlink(error)) files.push_back(entry.path());
    }
    if (files.empty()) {
      return Usage(std::string("no texts in ") + directory + "; give some with --data FILE...");
    }
    std::sort(files.begin(), files.end());
    return files;
  }

  torch::Tensor tokens_;
  std::int64_t vocabulary_ = 0;
  std::string id_;
};

// --------------------------------------------------------------------------------------- model

constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kHeads = 4;
constexpr std::int64_t kLayers = 4;
constexpr double kDropout = 0.1;

// Attention to the past, then a two-layer perceptron; each added to what came in.
struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm1 = register_module("norm1", torch::nn::LayerNorm(std::vector<std::int64_t>{kWidth}));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    merge = register_module("merge", torch::nn::Linear(kWidth, kWidth));
    norm2 = register_module("norm2", torch::nn::LayerNorm(std::vector<std::int64_t>{kWidth}));
    widen = register_module("widen", torch::nn::Linear(kWidth, 4 * kWidth));
    narrow = register_module("narrow", torch::nn::Linear(4 * kWidth, kWidth));
    dropout = register_module("dropout", torch::nn::Dropout(kDropout));
  }

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& future) {
    const std::int64_t batch = x.size(0);
    const std::int64_t length = x.size(1);
    const auto heads = [&](const torch::Tensor& t) {  // -> [batch, head, length, width of a head]
      return t.view({batch, length, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const std::vector<torch::Tensor> parts = qkv(norm1(x)).chunk(3, -1);
    constexpr std::int64_t kHeadWidth = kWidth / kHeads;
    const double scale = 1.0 / std::sqrt(static_cast<double>(kHeadWidth));
    torch::Tensor weights = heads(parts[0]).matmul(heads(parts[1]).transpose(2, 3)) * scale;
    weights = weights.masked_fill(future, -1e9).softmax(-1);
    const torch::Tensor seen = weights.matmul(heads(parts[2])).transpose(1, 2);
    x = x + dropout(merge(seen.reshape({batch, length, kWidth})));
    return x + dropout(narrow(torch::gelu(widen(norm2(x)))));
  }

  torch::nn::LayerNorm norm1 = nullptr, norm2 = nullptr;
  torch::nn::Linear qkv = nullptr, merge = nullptr, widen = nullptr, narrow = nullptr;
  torch::nn::Dropout dropout = nullptr;
};
TORCH_MODULE(Block);

// About 0.8 million parameters.
struct GptImpl : torch::nn::Module {
  explicit GptImpl(std::int64_t vocabulary) {
    token = register_module("token", torch::nn::Embedding(vocabulary, kWidth));
    place = register_module("place", torch::nn::Embedding(Corpus::kContext, kWidth));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (std::int64_t i = 0; i < kLayers; ++i) blocks->push_back(Block());
    norm = register_module("norm", torch::nn::LayerNorm(std::vector<std::int64_t>{kWidth}));
    future = register_buffer(
        "future",
        torch::ones({Corpus::kContext, Corpus::kContext}, torch::kBool).triu(/*diagonal=*/1));

    const torch::NoGradGuard no_grad;
    for (auto& parameter : named_parameters()) {
      const std::string& name = parameter.key();
      if (parameter->dim() < 2) continue;  // biases and norms keep their start
      const bool adds =
          name.find("merge") != std::string::npos || name.find("narrow") != std::string::npos;
      parameter->normal_(0.0, adds ? 0.02 / std::sqrt(2.0 * kLayers) : 0.02);
    }
  }

  // The mean cross-entropy of the next character.
  torch::Tensor forward(const torch::data::Example<>& batch) {
    const std::int64_t length = batch.data.size(1);
    torch::Tensor x = token(batch.data) + place(torch::arange(length));
    const torch::Tensor mask = future.narrow(0, 0, length).narrow(1, 0, length);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, mask);
    const torch::Tensor logits = torch::nn::functional::linear(norm(x), token->weight);
    return torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch.target.flatten());
  }

  torch::nn::Embedding token = nullptr, place = nullptr;
  torch::nn::ModuleList blocks = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  torch::Tensor future;
};
TORCH_MODULE(Gpt);

// Weight decay for matrices, none for biases and norms.
torch::optim::AdamW MakeOptimizer(const Gpt& model) {
  std::vector<torch::Tensor> matrices;
  std::vector<torch::Tensor> others;
  for (const torch::Tensor& parameter : model->parameters()) {
    (parameter.dim() >= 2 ? matrices : others).push_back(parameter);
  }
  const torch::optim::AdamWOptions decay = torch::optim::AdamWOptions().betas({0.9, 0.99});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<torch::optim::AdamWOptions>(decay));
  groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(
                                  torch::optim::AdamWOptions(decay).weight_decay(0)));
  return torch::optim::AdamW(std::move(groups), decay);
}

// A short rise, then constant. A function of the step, so there is nothing to save of it.
void SetLearningRate(torch::optim::AdamW& optimizer, std::int64_t step) {
  const double rate = 1e-3 * std::min(1.0, static_cast<double>(step + 1) / 20);
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

// --------------------------------------------------------------------------------- the loss file

// Lines "step,generation,loss", appended and flushed one by one; the loss in hexadecimal, so that
// no bit is lost. Steps that a later generation did again are there once more.
class LossFile {
 public:
  static perdure::Result<LossFile> Open(const std::string& path) {
    std::FILE* const file = std::fopen(path.c_str(), "a+");
    if (file == nullptr) return Usage("cannot append to " + path + ": " + std::strerror(errno));
    LossFile opened(file);
    // A rank that was killed may have left half a line: end it.
    if (std::fseek(file, -1, SEEK_END) == 0 && std::fgetc(file) != '\n') std::fputc('\n', file);
    return opened;
  }

  perdure::Status Append(std::int64_t step, perdure::Generation generation, double loss) {
    std::fprintf(file_.get(), "%lld,%lld,%a\n", static_cast<long long>(step),
                 static_cast<long long>(generation.value()), loss);
    if (std::fflush(file_.get()) != 0) {
      return {perdure::Code::kUnavailable, std::string("loss file: ") + std::strerror(errno)};
    }
    return perdure::Ok();
  }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  explicit LossFile(std::FILE* file) : file_(file) {}
  std::unique_ptr<std::FILE, Closer> file_;
};

// ------------------------------------------------------------------------------------- training

// The mean over all ranks; bit-identical on all of them, and from run to run.
perdure::Result<double> Average(double value, perdure::Communicator& ranks) {
  if (ranks.size() == 1) return value;
  const perdure::TensorView view{&value, perdure::DType::kF64, {}};
  // The operation ends by its deadline, done or failed; the wait outlives it to hear why.
  const perdure::Deadline deadline = ranks.DefaultDeadline();
  const auto work = ranks.AllReduce(view, perdure::ReduceOp::kAverage, deadline);
  PERDURE_RETURN_IF_ERROR(work->Wait(perdure::Deadline(deadline.at() + std::chrono::seconds(5))));
  return value;
}

// The training body. It runs once per generation, from the top: what it builds it builds anew, and
// what has to survive it adds to the checkpointer.
perdure::Status Train(perdure::Session& session, const Options& options, const Corpus& corpus) {
  const bool first_rank = session.rank() == perdure::Rank(0);

  // The same weights on all ranks. Dropout then draws from a generator of each rank's own.
  torch::manual_seed(options.seed);
  Gpt model(corpus.vocabulary());
  torch::optim::AdamW optimizer = MakeOptimizer(model);
  torch::manual_seed(options.seed + 1 + session.rank().value());

  // Which samples belong to a step is a function of the step.
  perdure::SamplerOptions sampling;
  sampling.global_batch = options.batch;
  sampling.seed = static_cast<std::uint64_t>(options.seed);
  sampling.dataset_id = corpus.id();
  perdure::ResumableSampler sampler(corpus.size(), sampling, session.data_placement());
  PERDURE_RETURN_IF_ERROR(sampler.status());

  perdure::torch::GradientBucketer gradients(model, session.world());

  // All that the next step depends on. A checkpoint holds these, and the step.
  perdure::Checkpointer& checkpoints = session.checkpointer();
  checkpoints.Add("model", perdure::torch::StateOf(model));
  checkpoints.Add("optimizer", perdure::torch::StateOf(optimizer, model));
  checkpoints.Add("rng", perdure::torch::RngState());
  checkpoints.Add("sampler", sampler);
  PERDURE_ASSIGN_OR_RETURN(const perdure::RestoreReport restored, checkpoints.Restore());

  std::unique_ptr<LossFile> losses;
  if (first_rank) {
    PERDURE_ASSIGN_OR_RETURN(LossFile opened, LossFile::Open(options.loss_file));
    losses = std::make_unique<LossFile>(std::move(opened));
    if (restored.fresh) {
      std::int64_t parameters = 0;
      for (const torch::Tensor& parameter : model->parameters()) parameters += parameter.numel();
      std::printf("a fresh run: %lld samples, %lld parameters\n",
                  static_cast<long long>(corpus.size()), static_cast<long long>(parameters));
    } else {
      std::printf("resumed from %s: next is step %lld\n", restored.checkpoint.c_str(),
                  static_cast<long long>(restored.next_step));
    }
    std::fflush(stdout);
  }

  for (std::int64_t step = restored.next_step; step < options.steps; ++step) {
    perdure::StepScope scope = session.BeginStep(step);
    const torch::data::Example<> batch = corpus.Get(sampler.At(step));

    const torch::Tensor loss = model(batch);
    loss.backward();
    // A dead or late peer is reported here, by rank and reason: leave, the supervisor does the
    // rest.
    PERDURE_RETURN_IF_ERROR(gradients.Finish());
    PERDURE_ASSIGN_OR_RETURN(const double mean_loss, Average(loss.item<double>(), session.world()));

    // A save that is in flight has its copy after this.
    PERDURE_RETURN_IF_ERROR(scope.BeforeUpdate());
    const double norm = torch::nn::utils::clip_grad_norm_(model->parameters(), /*max_norm=*/1.0);
    SetLearningRate(optimizer, step);
    optimizer.step();

    if (first_rank) {
      PERDURE_RETURN_IF_ERROR(losses->Append(step, session.generation(), mean_loss));
      if (step % 20 == 0 || step + 1 == options.steps) {
        std::printf("step %lld loss %.4f\n", static_cast<long long>(step), mean_loss);
        std::fflush(stdout);
      }
    }
    perdure::StepMetrics metrics = perdure::torch::Metrics(loss, batch);
    metrics.loss = mean_loss;
    metrics.grad_norm = norm;
    // Heartbeat, the checkpoint that is due, and whether this machine is wanted back.
    PERDURE_RETURN_IF_ERROR(scope.End(metrics));
  }

  // The trained model is worth a checkpoint, due or not. (Without a directory there is none to
  // make.)
  if (restored.next_step < options.steps) {
    const perdure::Status saved = checkpoints.Save(options.steps - 1);
    if (!saved.ok() && saved.code() != perdure::Code::kFailedPrecondition) return saved;
  }
  return perdure::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  // libtorch splits sums by its number of threads: keep it the same for the same bits.
  if (std::getenv("OMP_NUM_THREADS") == nullptr) torch::set_num_threads(1);

  const perdure::Result<Options> options = ParseOptions(argc, argv);
  if (!options.ok()) {
    std::fprintf(stderr, "%s\n", options.status().message().c_str());
    return 2;
  }
  const perdure::Result<Corpus> corpus = Corpus::Read(options->data);
  if (!corpus.ok()) {
    std::fprintf(stderr, "%s\n", corpus.status().message().c_str());
    return 2;
  }
  return perdure::Run(argc, argv,
                      [&](perdure::Session& session) { return Train(session, *options, *corpus); });
}
