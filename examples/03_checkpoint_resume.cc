// State that survives: a program without libtorch saves plain floats, breaks off, and goes on.
//
//   build/bin/checkpoint_resume [DIRECTORY]       (default: a new one in /tmp, removed at the end)
//
// It computes the same thing twice: once undisturbed, and once broken off at step 13 and started
// again. Both must end with the same bits. What lies in the directory afterwards can be looked at:
//
//   build/bin/perdure checkpoint ls DIRECTORY/broken-off
#include <perdure/perdure.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <random>
#include <sstream>
#include <string>

namespace {

constexpr std::int64_t kSteps = 20;

// Gradient descent with momentum and noise towards (1, 2, 3, 4). A Stateful describes what has to
// survive: tensors as views of its own memory, anything else as named bytes.
class Descent final : public perdure::Stateful {
 public:
  void Step() {
    std::normal_distribution<float> noise(0.0F, 0.01F);
    for (std::size_t i = 0; i < position.size(); ++i) {
      const float gradient = position[i] - static_cast<float>(i + 1) + noise(random_);
      velocity_[i] = 0.9F * velocity_[i] - 0.05F * gradient;
      position[i] += velocity_[i];
    }
  }

  perdure::Result<perdure::State> Describe() override {
    perdure::State state;
    // Changed in the update only: a save may copy them while the next forward runs.
    state.tensors.push_back({"position", View(position), {}, {}});
    state.tensors.push_back({"velocity", View(velocity_), {}, {}});
    // Each rank draws numbers of its own.
    std::ostringstream bytes;
    bytes << random_;
    state.blobs.push_back({"random", bytes.str(), perdure::Holders::kPerRank});
    return state;
  }

  // The tensors hold the restored values already; bytes are handed over here.
  perdure::Status FinishRestore(const std::vector<perdure::BlobEntry>& blobs) override {
    for (const perdure::BlobEntry& blob : blobs) {
      std::istringstream bytes(blob.bytes);
      if (blob.name == "random") bytes >> random_;
      if (bytes.fail()) return {perdure::Code::kDataLoss, "random: not a generator's state"};
    }
    return perdure::Ok();
  }

  std::array<float, 4> position{};

 private:
  static perdure::TensorView View(std::array<float, 4>& floats) {
    return {floats.data(), perdure::DType::kF32, {4}};
  }

  std::array<float, 4> velocity_{};
  std::mt19937 random_{1};
};

// Runs until `break_off_at` or the end. perdure::Run is this with an environment instead of
// options.
int Run(const std::string& directory, std::int64_t break_off_at, Descent& descent) {
  perdure::SessionOptions options;
  options.job = "descent";
  options.checkpoint_directory = directory;
  options.checkpoint_interval = 5;  // after steps 4, 9, 14, …
  perdure::Result<std::unique_ptr<perdure::Session>> opened =
      perdure::Session::Open(std::move(options));
  if (!opened.ok()) {
    std::fprintf(stderr, "%s\n", opened.status().ToString().c_str());
    return 1;
  }
  perdure::Session& session = **opened;

  const auto body = [&]() -> perdure::Status {
    session.checkpointer().Add("descent", descent);
    PERDURE_ASSIGN_OR_RETURN(const perdure::RestoreReport restored,
                             session.checkpointer().Restore());
    if (restored.fresh) {
      std::printf("  generation %lld begins afresh\n",
                  static_cast<long long>(session.generation().value()));
    } else {
      std::printf("  generation %lld goes on with step %lld, from %s\n",
                  static_cast<long long>(session.generation().value()),
                  static_cast<long long>(restored.next_step), restored.checkpoint.c_str());
    }
    for (std::int64_t step = restored.next_step; step < kSteps; ++step) {
      if (step == break_off_at) return {perdure::Code::kUserError, "broken off, as told"};
      perdure::StepScope scope = session.BeginStep(step);
      PERDURE_RETURN_IF_ERROR(scope.BeforeUpdate());
      descent.Step();
      PERDURE_RETURN_IF_ERROR(scope.End());  // saves when one is due
    }
    return perdure::Ok();
  };
  // Close waits for saves in flight; what it returns is the exit code that main would return.
  return session.Close(body());
}

}  // namespace

int main(int argc, char** argv) {
  std::string root = argc > 1 ? argv[1] : "";
  if (root.empty()) {
    std::string pattern = "/tmp/checkpoint_resume.XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) {
      std::perror("mkdtemp /tmp/checkpoint_resume.XXXXXX");
      return 1;
    }
    root = pattern;
  }

  std::printf("undisturbed:\n");
  Descent undisturbed;
  const int first = Run(root + "/undisturbed", /*break_off_at=*/-1, undisturbed);

  std::printf("broken off at step 13:\n");
  Descent lost;
  const int broken = Run(root + "/broken-off", /*break_off_at=*/13, lost);
  Descent resumed;  // as in a new process: nothing is known of before
  const int second = Run(root + "/broken-off", /*break_off_at=*/-1, resumed);

  const bool same = std::memcmp(undisturbed.position.data(), resumed.position.data(),
                                sizeof(resumed.position)) == 0;
  std::printf("position %.6f %.6f %.6f %.6f\nbit-identical to the undisturbed run: %s\n",
              resumed.position[0], resumed.position[1], resumed.position[2], resumed.position[3],
              same ? "yes" : "no");
  if (argc <= 1) std::filesystem::remove_all(root);
  return first == 0 && broken == 1 && second == 0 && same ? 0 : 1;
}
