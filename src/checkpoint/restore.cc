#include "checkpoint/restore.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/log.h"
#include "checkpoint/catalog.h"
#include "checkpoint/claim.h"
#include "checkpoint/foreign.h"
#include "checkpoint/handout.h"
#include "checkpoint/json.h"
#include "checkpoint/read_plan.h"
#include "checkpoint/reader.h"
#include "checkpoint/restore_answer.h"
#include "checkpoint/restore_plan.h"
#include "checkpoint/staging.h"
#include "device/copy_streams.h"
#include "storage/file_store.h"

namespace perdure {
namespace {

using Json = nlohmann::json;
using PassedOver = std::vector<std::pair<std::string, std::string>>;

constexpr int kReadTriesMax = 3;
constexpr Duration kReadPause = std::chrono::milliseconds(200);
// Differences told in one error; the rest is counted.
constexpr std::size_t kLinesMax = 100;

// Runs `read` again after an error of the disk; what the bytes say is final.
template <class Read>
auto WithRetries(Exchange& exchange, Read read) {
  for (int i = 1;; ++i) {
    auto result = read();
    const Code code = result.status().code();
    const bool final_word = result.ok() || code == Code::kDataLoss || code == Code::kNotFound ||
                            code == Code::kUnimplemented || code == Code::kInvalidArgument;
    if (final_word || i == kReadTriesMax) return result;
    Log().warn("reading failed, trying again: {}", result.status().message());
    exchange.Pause(kReadPause);
  }
}

struct Candidate {
  CheckpointName name;
  LoadedManifest loaded;
};

Status AnotherFileSystem(const CheckpointName& name) {
  return Status(Code::kUnavailable,
                fmt::format("this rank sees another manifest of {} than rank 0; is the same file "
                            "system mounted?",
                            FormatName(name)));
}

class Restorer {
 public:
  Restorer(const RestoreInput& input, Exchange& exchange, Files& files, Parts& parts,
           Staging& staging)
      : input_(input),
        exchange_(exchange),
        files_(files),
        store_(files, input.root),
        parts_(parts),
        staging_(staging),
        streams_(*input.devices),
        begin_(exchange.clock().Now()) {}

  Result<RestoreResult> Run();

 private:
  std::string Key(std::string_view what) const {
    return fmt::format("/ckpt/restore/{}/{}", round_, what);
  }

  // Rank 0.
  Status FenceOr(const Status& status);
  Status FindCandidates();
  Status TakeBack(const CheckpointName& name);
  bool WasRetiredMeanwhile(const CheckpointName& name);
  Result<std::string> NextProposal();
  Status HandOut();
  Status FreshStart(std::string* proposal);
  Result<std::string> Decide(bool fresh);
  Status PublishFork(const std::optional<CheckpointId>& parent);

  // Every rank.
  // The state as it is, in memory that can be reached.
  Result<LocalState> Describe();
  RestoreAnswer Verify(const Json& proposal);
  // What this rank needs to know of the manifest: its share, or all of it.
  Result<Manifest> TakeManifest(const Json& proposal, const CheckpointName& name);
  Result<Manifest> WholeManifest(const Json& proposal, const CheckpointName& name);
  RestoreAnswer ReadCandidate(const CheckpointName& name, const Json& proposal);
  Status ReadForeign(const std::string& directory);
  Result<RestoreResult> Finish(const Json& proposal, const Json& decision);

  const RestoreInput& input_;
  Exchange& exchange_;
  Files& files_;
  FileStore store_;  // the root
  Parts& parts_;
  Staging& staging_;
  CopyStreams streams_;
  const MonotonicTime begin_;
  int round_ = 0;

  // Rank 0.
  std::vector<Fork> forks_;
  std::vector<CheckpointName> candidates_;  // next one last
  std::optional<Candidate> proposed_;
  bool anything_committed_ = false;
  PassedOver passed_over_;
  Lineage lineage_;

  // This rank's state, read but not yet handed over.
  LocalState state_;
  RestorePlan plan_;
  int saved_world_ = 0;
  std::int64_t bytes_read_ = 0;
};

// A newer generation changes the root under this one's feet: then that is the reason, whatever else
// was noticed of it.
Status Restorer::FenceOr(const Status& status) {
  if (status.ok()) return status;
  const Status fenced = CheckNotFenced(store_, exchange_.generation());
  return fenced.code() == Code::kFenced ? fenced : status;
}

Status Restorer::FindCandidates() {
  PERDURE_ASSIGN_OR_RETURN(forks_, ReadForks(store_));
  PERDURE_ASSIGN_OR_RETURN(const std::vector<CheckpointName> names,
                           ListCheckpoints(files_, input_.root));
  const std::optional<Generation> head = HeadOf(forks_);
  Lineage lineage;
  if (head.has_value()) {
    PERDURE_ASSIGN_OR_RETURN(lineage, LineageOf(*head, forks_));
  }
  for (const Fork& fork : forks_) anything_committed_ |= fork.parent.has_value();
  PERDURE_ASSIGN_OR_RETURN(const bool hint, Exists(store_, std::string(kLatestName)));
  anything_committed_ |= hint;
  for (const CheckpointName& name : names) {
    if (name.kind != NameKind::kCommitted && name.kind != NameKind::kTrash) continue;
    // CKPT-4. What is off the lineage is still a sign that something was committed here.
    if (Contains(lineage, name.id)) {
      candidates_.push_back(name);
    } else if (files_.Info(JoinPath(JoinPath(input_.root, FormatName(name)), kManifestName)).ok()) {
      anything_committed_ = true;
    }
  }
  std::sort(candidates_.begin(), candidates_.end(),
            [](const CheckpointName& a, const CheckpointName& b) {
              if (a.kind != b.kind) return a.kind == NameKind::kTrash;
              return NewerOnLineage(b.id, a.id);
            });
  return Ok();
}

Status Restorer::TakeBack(const CheckpointName& name) {
  PERDURE_RETURN_IF_ERROR(CheckNotFenced(store_, exchange_.generation()));
  PERDURE_RETURN_IF_ERROR(files_.Rename(JoinPath(input_.root, FormatName(name)),
                                        JoinPath(input_.root, CommittedName(name.id)),
                                        Files::Replace::kNo));
  return files_.SyncDirectory(input_.root);
}

// A rank 0 that was cut off may retire a candidate at the last moment, once. Then the candidate
// comes back, and is next.
bool Restorer::WasRetiredMeanwhile(const CheckpointName& name) {
  const Status there = files_.Info(JoinPath(input_.root, FormatName(name))).status();
  if (there.code() != Code::kNotFound) return false;
  if (!TakeBack({NameKind::kTrash, name.id, ""}).ok()) return false;
  candidates_.push_back(name);
  return true;
}

Result<std::string> Restorer::NextProposal() {
  proposed_.reset();
  while (!candidates_.empty() && input_.rules.resume != RestoreRules::Resume::kNever) {
    CheckpointName name = candidates_.back();
    candidates_.pop_back();
    const std::string text = CommittedName(name.id);
    const auto pass_over = [&](const std::string& reason) {
      Log().warn("passing over {}: {}", text, reason);
      passed_over_.emplace_back(text, reason);
    };
    const std::vector<std::string>& avoid = input_.rules.avoid;
    if (std::find(avoid.begin(), avoid.end(), text) != avoid.end()) {
      anything_committed_ = true;
      pass_over("it was being loaded when earlier generations crashed");
      continue;
    }
    if (name.kind == NameKind::kTrash) {
      // Taken back before anything of it is read: a rank 0 that was cut off while it deleted this
      // one finds nothing more under the name that it knows, and later retention starts anew.
      const Status taken = TakeBack(name);
      if (taken.code() == Code::kNotFound || taken.code() == Code::kAlreadyExists) {
        pass_over("it was retired, and is gone");
        continue;
      }
      PERDURE_RETURN_IF_ERROR(taken);
      name.kind = NameKind::kCommitted;
    }
    Result<LoadedManifest> loaded = WithRetries(exchange_, [&]() -> Result<LoadedManifest> {
      PERDURE_ASSIGN_OR_RETURN(LoadedManifest found,
                               LoadManifest(files_, input_.root, name, input_.root_id));
      PERDURE_RETURN_IF_ERROR(CheckSizes(files_, JoinPath(input_.root, text), found.manifest));
      return found;
    });
    if (!loaded.ok() && WasRetiredMeanwhile(name)) continue;
    if (loaded.status().code() == Code::kNotFound) {
      pass_over("no manifest.json in it, so it is not a checkpoint");
      continue;
    }
    anything_committed_ = true;
    if (loaded.status().code() == Code::kDataLoss) {
      pass_over(loaded.status().message());
      continue;
    }
    PERDURE_RETURN_IF_ERROR(loaded.status());
    proposed_ = Candidate{name, std::move(loaded).value()};
    const bool shares = proposed_->loaded.manifest.world == exchange_.size();
    if (shares) PERDURE_RETURN_IF_ERROR(HandOut());
    PERDURE_ASSIGN_OR_RETURN(const FileInfo manifest,
                             files_.Info(JoinPath(JoinPath(input_.root, text), kManifestName)));
    return OneLine({{"kind", "checkpoint"},
                    {"name", text},
                    {"digest", proposed_->loaded.digest},
                    {"bytes", manifest.bytes},
                    {"shares", shares}});
  }
  std::string fresh;
  PERDURE_RETURN_IF_ERROR(FreshStart(&fresh));
  return fresh;
}

// As many ranks as have saved: each is told its lines, and none has to read those of all.
Status Restorer::HandOut() {
  const Handout handout = MakeHandout(proposed_->loaded.manifest);
  PERDURE_RETURN_IF_ERROR(exchange_.Put(Key("share/common"), handout.common, input_.deadline));
  for (std::size_t rank = 0; rank < handout.own.size(); ++rank) {
    PERDURE_RETURN_IF_ERROR(
        exchange_.Put(Key(fmt::format("share/{}", rank)), handout.own[rank], input_.deadline));
  }
  return Ok();
}

Status Restorer::FreshStart(std::string* proposal) {
  *proposal = OneLine({{"kind", "fresh"}});
  if (input_.rules.resume == RestoreRules::Resume::kNever) {
    Log().warn(
        "starting at step 0 as asked (resume: never); what is in {} stays, off the new "
        "lineage",
        input_.root);
    return Ok();
  }
  std::string why;
  for (const auto& [name, reason] : passed_over_) {
    why += fmt::format("; {}: {}", name, reason);
  }
  if (anything_committed_) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("checkpoints were committed in {}, and none of the lineage can be "
                              "restored{}; bring one back, or begin anew with resume: never",
                              input_.root, why));
  }
  if (input_.rules.resume == RestoreRules::Resume::kRequire) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("resume is required, and {} holds no checkpoint{}; name the right "
                              "directory, or begin with resume: auto",
                              input_.root, why));
  }
  Log().warn("nothing was ever committed in {}: FRESH START at step 0{}", input_.root, why);
  return Ok();
}

Result<LocalState> Restorer::Describe() {
  PERDURE_ASSIGN_OR_RETURN(LocalState state, parts_.Describe());
  for (std::size_t i = 0; i < state.structure.size(); ++i) {
    if (state.structure[i].blob) continue;
    PERDURE_RETURN_IF_ERROR(
        streams_.For(state.entries[i].view).status().WithContext(state.structure[i].name));
  }
  return state;
}

Result<Manifest> Restorer::WholeManifest(const Json& proposal, const CheckpointName& name) {
  PERDURE_ASSIGN_OR_RETURN(LoadedManifest loaded, WithRetries(exchange_, [&] {
                             return LoadManifest(files_, input_.root, name, input_.root_id);
                           }));
  if (loaded.digest != proposal.value("digest", "")) return AnotherFileSystem(name);
  return std::move(loaded.manifest);
}

Result<Manifest> Restorer::TakeManifest(const Json& proposal, const CheckpointName& name) {
  if (!proposal.value("shares", false)) return WholeManifest(proposal, name);
  // Cheap, and enough to notice a mount that is missing or another one.
  const std::string path = JoinPath(JoinPath(input_.root, FormatName(name)), kManifestName);
  PERDURE_ASSIGN_OR_RETURN(const FileInfo info,
                           WithRetries(exchange_, [&] { return files_.Info(path); }));
  if (info.bytes != proposal.value("bytes", std::int64_t{-1})) return AnotherFileSystem(name);
  PERDURE_ASSIGN_OR_RETURN(const std::string common,
                           exchange_.Get(Key("share/common"), input_.deadline));
  const std::string mine = Key(fmt::format("share/{}", exchange_.rank().value()));
  PERDURE_ASSIGN_OR_RETURN(const std::string own, exchange_.Get(mine, input_.deadline));
  return ReadShare(common, own, mine);
}

RestoreAnswer Restorer::ReadCandidate(const CheckpointName& name, const Json& proposal) {
  RestoreAnswer answer;
  const auto fail = [&](const Status& status, std::string_view doing) {
    answer.kind =
        status.code() == Code::kDataLoss ? RestoreAnswer::Kind::kBad : RestoreAnswer::Kind::kError;
    answer.error = doing.empty() ? status : status.WithContext(doing);
    return answer;
  };
  const Result<Manifest> taken = TakeManifest(proposal, name);
  if (!taken.ok()) return fail(taken.status(), "");
  const Manifest& manifest = *taken;
  if (const Status prepared = parts_.PrepareRestore(manifest); !prepared.ok()) {
    answer.kind = RestoreAnswer::Kind::kError;
    answer.error = prepared.WithContext("preparing the program's state");
    return answer;
  }
  Result<LocalState> described = Describe();
  if (!described.ok()) {
    answer.kind = RestoreAnswer::Kind::kError;
    answer.error = described.status();
    return answer;
  }
  state_ = std::move(described).value();
  plan_ = PlanRestore(manifest, exchange_.size(), state_);
  saved_world_ = manifest.world;
  answer.lines = plan_.differences;
  std::vector<std::pair<std::string, ForeignRead>> foreign;
  for (const ForeignPart& part : parts_.foreign()) {
    foreign.emplace_back(part.name,
                         PlanForeign(manifest, part, exchange_.rank(), exchange_.size()));
    const std::string& difference = foreign.back().second.difference;
    if (!difference.empty()) answer.lines.push_back(difference);
    plan_.used.insert(part.name);
  }
  answer.used = Bitmap(NamesOf(manifest), plan_.used);
  if (!answer.lines.empty()) {
    answer.kind = RestoreAnswer::Kind::kDifferent;
    return answer;
  }
  CpuDevice cpu;
  const Status room = staging_.Shape(state_.structure, plan_.read, cpu);
  if (!room.ok()) return fail(room, "");
  const Rank near = NearestSavedRank(exchange_.rank(), exchange_.size(), manifest.world);
  const Result<std::int64_t> read = WithRetries(exchange_, [&] {
    return ReadPieces(
        files_, JoinPath(input_.root, FormatName(name)), manifest, near, plan_.reads,
        [&](std::size_t i) { return staging_.BytesOf(plan_.into[i]); },
        [&] { return WholeManifest(proposal, name); });
  });
  if (!read.ok()) return fail(read.status(), "");
  bytes_read_ = *read;
  for (const auto& [part, plan] : foreign) {
    for (const ForeignFile* const file : plan.files) {
      const Status whole = WithRetries(exchange_, [&, &part = part]() -> Result<bool> {
                             PERDURE_RETURN_IF_ERROR(VerifyForeignFile(
                                 files_, JoinPath(input_.root, FormatName(name)), part, *file));
                             return true;
                           }).status();
      if (!whole.ok()) return fail(whole, "");
      bytes_read_ += file->bytes;
    }
  }
  for (const auto& [a, b] : plan_.alike) {
    const std::span<const std::byte> bytes = staging_.BytesOf(a);
    const std::span<const std::byte> others = staging_.BytesOf(b);
    if (std::equal(bytes.begin(), bytes.end(), others.begin(), others.end())) continue;
    answer.kind = RestoreAnswer::Kind::kDifferent;
    answer.lines.push_back(
        fmt::format("tensors {} and {}: one memory in the program, different values in the "
                    "checkpoint",
                    state_.structure[a].name, state_.structure[b].name));
  }
  return answer;
}

RestoreAnswer Restorer::Verify(const Json& proposal) {
  if (proposal.value("kind", "") == "fresh") {
    // Shows bad names and unsupported memory before hours of training.
    RestoreAnswer answer;
    Result<LocalState> described = Describe();
    if (!described.ok()) {
      answer.kind = RestoreAnswer::Kind::kError;
      answer.error = described.status();
    }
    return answer;
  }
  const std::optional<CheckpointName> name = ParseName(proposal.value("name", ""));
  if (!name.has_value()) {
    RestoreAnswer answer;
    answer.kind = RestoreAnswer::Kind::kError;
    answer.error = Status(Code::kInternal, "rank 0 proposed something without a name");
    return answer;
  }
  return ReadCandidate(*name, proposal);
}

// Rank 0: collects the answers and says what happens.
Result<std::string> Restorer::Decide(bool fresh) {
  std::vector<std::string> names;
  if (!fresh) names = NamesOf(proposed_->loaded.manifest);
  std::vector<bool> used(names.size(), false);
  const bool shares = !fresh && proposed_->loaded.manifest.world == exchange_.size();
  const ShareOfNames share(names, shares ? exchange_.size() : 0);
  std::vector<std::string> lines;
  std::set<std::string> seen;
  Status bad;
  for (int rank = 0; rank < exchange_.size(); ++rank) {
    const Result<std::string> text =
        exchange_.Get(Key(fmt::format("answer/{}", rank)), input_.deadline);
    if (text.status().code() == Code::kDeadlineExceeded) {
      return Status(Code::kDeadlineExceeded,
                    fmt::format("rank {} did not finish restoring in time", rank));
    }
    PERDURE_RETURN_IF_ERROR(text.status());
    PERDURE_ASSIGN_OR_RETURN(const RestoreAnswer answer, ParseRestoreAnswer(*text));
    const std::string who = fmt::format("rank {}", rank);
    const bool gone =
        answer.kind == RestoreAnswer::Kind::kError && answer.error.code() == Code::kNotFound;
    if ((gone || answer.kind == RestoreAnswer::Kind::kBad) && !fresh &&
        WasRetiredMeanwhile(proposed_->name)) {
      return OneLine({{"kind", "next"}});
    }
    if (answer.kind == RestoreAnswer::Kind::kError) return answer.error.WithContext(who);
    if (answer.kind == RestoreAnswer::Kind::kBad && bad.ok()) bad = answer.error.WithContext(who);
    if (answer.kind == RestoreAnswer::Kind::kDifferent) {
      for (const std::string& line : answer.lines) {
        if (seen.insert(line).second) lines.push_back(line);
      }
    }
    const std::vector<std::size_t> its = shares ? share.Of(Rank(rank)) : share.Common();
    for (std::size_t i = 0; i < its.size(); ++i) {
      if (BitOf(answer.used, i)) used[its[i]] = true;
    }
  }
  if (!bad.ok()) {
    const std::string text = FormatName(proposed_->name);
    Log().warn("passing over {}: {}", text, bad.message());
    passed_over_.emplace_back(text, bad.message());
    return OneLine({{"kind", "next"}});
  }
  const std::size_t blobs = names.size() - (fresh ? 0 : proposed_->loaded.manifest.foreign.size());
  const std::size_t tensors = blobs - (fresh ? 0 : proposed_->loaded.manifest.blobs.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (used[i]) continue;
    lines.push_back(fmt::format("{} {}: in the checkpoint, not in the program",
                                i < tensors ? "tensor"
                                : i < blobs ? "blob"
                                            : "files of part",
                                names[i]));
  }
  if (!lines.empty()) {
    std::string all;
    for (std::size_t i = 0; i < lines.size() && i < kLinesMax; ++i) all += "\n  " + lines[i];
    if (lines.size() > kLinesMax) {
      all += fmt::format("\n  and {} more", lines.size() - kLinesMax);
    }
    return Status(Code::kFailedPrecondition,
                  fmt::format("{} does not fit this program ({} differences; saved by {} ranks, "
                              "this world has {}):{}",
                              FormatName(proposed_->name), lines.size(),
                              proposed_->loaded.manifest.world, exchange_.size(), all));
  }
  std::optional<CheckpointId> parent;
  if (!fresh) parent = proposed_->name.id;
  PERDURE_RETURN_IF_ERROR(PublishFork(parent));
  Json skipped = Json::array();
  for (const SampleRange& range : SkippedSamples(lineage_, forks_)) {
    skipped.push_back({range.begin, range.end});
  }
  return OneLine(
      {{"kind", "go"}, {"passed_over", Json(passed_over_)}, {"skipped", std::move(skipped)}});
}

Status Restorer::PublishFork(const std::optional<CheckpointId>& parent) {
  const Fork fork{exchange_.generation(), parent, input_.rules.reason, passed_over_,
                  input_.rules.skip_samples};
  PERDURE_RETURN_IF_ERROR(WriteFork(store_, fork));
  forks_.push_back(fork);
  PERDURE_ASSIGN_OR_RETURN(lineage_, LineageOf(fork.generation, forks_));
  return Ok();
}

// Each part's own files, verified by all ranks by now.
Status Restorer::ReadForeign(const std::string& directory) {
  const bool changed = saved_world_ != exchange_.size();
  for (const ForeignPart& part : parts_.foreign()) {
    if (changed && part.on_world_change == WorldChange::kRecompute) continue;
    const Rank from = changed ? Rank(0) : exchange_.rank();
    PERDURE_RETURN_IF_ERROR(CallProgram(part.read,
                                        ForeignDirectory(directory, part.name, from, saved_world_),
                                        fmt::format("reading part \"{}\"", part.name)));
  }
  return Ok();
}

Result<RestoreResult> Restorer::Finish(const Json& proposal, const Json& decision) {
  RestoreResult result;
  result.lineage = lineage_;
  for (const Json& item : decision.at("passed_over")) {
    result.report.passed_over.emplace_back(item.at(0).get<std::string>(),
                                           item.at(1).get<std::string>());
  }
  for (const Json& item : decision.at("skipped")) {
    result.skipped_samples.push_back(
        {item.at(0).get<std::int64_t>(), item.at(1).get<std::int64_t>()});
  }
  if (proposal.value("kind", "") != "fresh") {
    const std::optional<CheckpointName> name = ParseName(proposal.value("name", ""));
    PERDURE_RETURN_IF_ERROR(streams_.FollowProgram());
    for (std::size_t i = 0; i < state_.structure.size(); ++i) {
      if (state_.structure[i].blob || !plan_.read[i]) continue;
      const TensorView& view = state_.entries[i].view;
      PERDURE_ASSIGN_OR_RETURN(CopyStream* const stream, streams_.For(view));
      PERDURE_RETURN_IF_ERROR(
          Unpack(staging_.BytesOf(i), 0, view, *stream).WithContext(state_.structure[i].name));
    }
    PERDURE_RETURN_IF_ERROR(streams_.Drain(input_.deadline));
    PERDURE_RETURN_IF_ERROR(parts_.FinishRestore(
        state_, plan_.recompute, saved_world_,
        [&](std::size_t piece) -> std::span<const std::byte> { return staging_.BytesOf(piece); }));
    PERDURE_RETURN_IF_ERROR(ReadForeign(JoinPath(input_.root, CommittedName(name->id))));
    result.report.fresh = false;
    result.report.next_step = name->id.step.value() + 1;
    result.report.from_generation = name->id.generation;
    result.report.checkpoint = CommittedName(name->id);
    result.report.saved_world = saved_world_;
    result.report.bytes = bytes_read_;
  }
  result.report.seconds = Seconds(exchange_.clock().Now() - begin_);
  return result;
}

Result<RestoreResult> Restorer::Run() {
  const std::string mine = fmt::format("answer/{}", exchange_.rank().value());
  // What rank 0 says must be heard by those who wait to the end.
  const Deadline tell_by(input_.deadline.at() + std::chrono::seconds(5));
  const Status found = exchange_.is_rank_0() ? FindCandidates() : Ok();
  for (;; ++round_) {
    // 2
    if (exchange_.is_rank_0()) {
      const Result<std::string> proposal = found.ok() ? NextProposal() : found;
      PERDURE_RETURN_IF_ERROR(exchange_.Put(
          Key("proposal"), proposal.ok() ? *proposal : FormatError(FenceOr(proposal.status())),
          tell_by));
    }
    PERDURE_ASSIGN_OR_RETURN(const std::string text, exchange_.Get(Key("proposal"), tell_by));
    PERDURE_ASSIGN_OR_RETURN(const Json proposal, ParseJson(text, "proposal"));
    PERDURE_RETURN_IF_ERROR(ErrorIn(proposal));
    // 3
    const RestoreAnswer answer = Verify(proposal);
    PERDURE_RETURN_IF_ERROR(exchange_.Put(Key(mine), FormatRestoreAnswer(answer), tell_by));
    // 4
    if (exchange_.is_rank_0()) {
      const Result<std::string> decision = Decide(proposal.value("kind", "") == "fresh");
      PERDURE_RETURN_IF_ERROR(exchange_.Put(
          Key("decision"), decision.ok() ? *decision : FormatError(FenceOr(decision.status())),
          tell_by));
    }
    PERDURE_ASSIGN_OR_RETURN(const std::string decided, exchange_.Get(Key("decision"), tell_by));
    PERDURE_ASSIGN_OR_RETURN(const Json decision, ParseJson(decided, "decision"));
    PERDURE_RETURN_IF_ERROR(ErrorIn(decision));
    // 5
    if (decision.value("kind", "") != "go") continue;
    // All have answered, so all have read theirs.
    if (exchange_.is_rank_0()) exchange_.Forget(Key("share/"), tell_by);
    return Finish(proposal, decision);
  }
}

}  // namespace

Result<RestoreResult> RunRestore(const RestoreInput& input, Exchange& exchange, Files& files,
                                 Parts& parts, Staging& staging) {
  try {
    return Restorer(input, exchange, files, parts, staging).Run();
  } catch (const Json::exception& error) {
    // Only a message of another build could have a value of another type.
    return Status(Code::kInternal, fmt::format("a message between ranks: {}", error.what()));
  }
}

}  // namespace perdure
