#include "checkpoint/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "base/posix.h"
#include "checkpoint/claim.h"
#include "checkpoint/commit.h"
#include "checkpoint/deleter.h"
#include "checkpoint/foreign.h"
#include "checkpoint/hash.h"
#include "checkpoint/json.h"
#include "checkpoint/names.h"

namespace perdure {
namespace {

using Json = nlohmann::json;

constexpr int kAttemptBytes = 4;  // 8 hex digits
constexpr const char* kProducer = "perdure 0.1.0";
// Beyond this many tensors a disagreement is only counted.
constexpr int kNamedMax = 10;

// What rank 0 has to say must still be heard by those who wait to the very end of the save.
Deadline TellBy(const SaveJob& job) {
  return Deadline(job.deadline.at() + std::chrono::seconds(5));
}

// A wait for a rank that ran out, in words that name the rank.
Status NameRank(const Status& status, int rank, std::string_view what) {
  if (status.code() != Code::kDeadlineExceeded) return status;
  return Status(Code::kDeadlineExceeded, fmt::format("rank {} {} in time", rank, what));
}

bool WorthRetrying(const Status& status) {
  switch (status.code()) {
    case Code::kUnavailable:
    case Code::kResourceExhausted:
    case Code::kNotFound:
    case Code::kAlreadyExists:
      return true;
    default:
      return false;
  }
}

std::int64_t DataBytes(const std::vector<ShardContent>& contents) {
  std::int64_t bytes = 0;
  for (const ShardContent& content : contents) {
    bytes += ByteCount(content.piece.dtype, content.piece.shape).value();
  }
  return bytes;
}

// A full disk, with what would have to be free.
Status SayHowMuch(const Status& status, std::int64_t bytes, const std::string& directory) {
  if (status.code() != Code::kResourceExhausted) return status;
  return Status(status.code(),
                fmt::format("{}; this rank's part of the checkpoint needs {} bytes in {}",
                            status.message(), bytes, directory));
}

std::string FormatForeignReport(const ForeignFiles& foreign) {
  std::string text;
  for (const auto& [part, files] : foreign) {
    text += fmt::format("{}{}:[", text.empty() ? "" : ",", QuoteJson(part));
    const char* separator = "";
    for (const ForeignFile& file : files) {
      text +=
          fmt::format("{}[{},{},\"{}\"]", separator, QuoteJson(file.name), file.bytes, file.digest);
      separator = ",";
    }
    text += "]";
  }
  return text;
}

std::string JoinRanks(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += fmt::format("{}{}", text.empty() ? "" : ", ", rank);
  return text;
}

// One sentence about who holds what of a tensor, the minority first.
std::string NameMinority(const std::string& tensor,
                         const std::map<std::string, std::vector<int>>& by) {
  std::vector<std::vector<int>> camps;
  for (const auto& [digest, ranks] : by) camps.push_back(ranks);
  std::sort(camps.begin(), camps.end(), [](const std::vector<int>& a, const std::vector<int>& b) {
    return a.size() != b.size() ? a.size() < b.size() : a > b;
  });
  std::vector<int> others;
  for (std::size_t i = 1; i < camps.size(); ++i) {
    others.insert(others.end(), camps[i].begin(), camps[i].end());
  }
  std::sort(others.begin(), others.end());
  if (camps.size() == 2 && camps[0].size() == camps[1].size()) {
    return fmt::format("tensor {}: rank {} and rank {} hold different bytes", tensor,
                       JoinRanks(others), JoinRanks(camps[0]));
  }
  return fmt::format("tensor {}: rank {} holds other bytes than rank {}", tensor,
                     JoinRanks(camps[0]), JoinRanks(others));
}

}  // namespace

SaveOutcome Saver::Save(const SaveJob& job) {
  try {
    return SaveWithRetry(job);
  } catch (const Json::exception& error) {
    // Only a message of another build could have a value of another type.
    SaveOutcome outcome;
    outcome.status =
        Status(Code::kInternal, fmt::format("a message between ranks: {}", error.what()));
    return outcome;
  }
}

SaveOutcome Saver::SaveWithRetry(const SaveJob& job) {
  SaveOutcome outcome;
  for (int i = 0; i < kTriesPerSave; ++i) {
    outcome = Try(job, job.first_try + i);
    if (outcome.status.ok() || !outcome.retry || i + 1 == kTriesPerSave) break;
    if (exchange_.is_rank_0()) {
      Log().warn("checkpoint of step {} failed, trying once more from the same copy: {}",
                 job.step.value(), outcome.status.message());
    }
  }
  return outcome;
}

SaveOutcome Saver::Try(const SaveJob& job, int attempt_number) {
  const std::string prefix = fmt::format("/ckpt/save/{}/{}", job.step.value(), attempt_number);
  SaveOutcome failed;
  // 3
  failed.status = PublishStructure(job, prefix);
  if (!failed.status.ok()) return failed;
  std::string attempt;
  if (exchange_.is_rank_0()) {
    Result<std::string> go = Prepare(job, prefix);
    const bool retry = !go.ok() && WorthRetrying(go.status()) && attempt_number == job.first_try;
    std::string text = go.ok() ? *go : FormatError(go.status());
    if (retry) text.insert(text.size() - 1, ",\"retry\":true");
    failed.status = exchange_.Put(prefix + "/go", text, TellBy(job));
    if (!failed.status.ok()) return failed;
  }
  const Result<std::string> go_text = exchange_.Get(prefix + "/go", TellBy(job));
  failed.status = NameRank(go_text.status(), 0, "did not begin the checkpoint");
  if (!failed.status.ok()) return failed;
  const Result<Json> go = ParseJson(*go_text, "go");
  failed.status = go.ok() ? ErrorIn(*go) : go.status();
  failed.retry = go.ok() && go->value("retry", false);
  if (!failed.status.ok()) return failed;
  attempt = go->value("attempt", "");

  // 4, 5
  if (job.snapshot == nullptr) {
    failed.status =
        Status(Code::kInternal, "rank 0 began a checkpoint that this rank cannot write");
    return failed;
  }
  const Result<RankPlan> plan =
      PlanOf(go->value("plan", ""), job.snapshot->structure(), job.deadline);
  Status written = plan.status();
  if (written.ok()) written = WriteAndReport(job, prefix, attempt, *plan);
  if (!written.ok()) {
    // Rank 0 hears it from the report and tells everyone; without a store nobody can.
    const Status told = exchange_.Put(fmt::format("{}/report/{}", prefix, exchange_.rank().value()),
                                      FormatError(written), TellBy(job));
    if (!told.ok()) {
      failed.status = written;
      return failed;
    }
  }
  if (!exchange_.is_rank_0()) {
    return ReadOutcome(job, prefix, plan.ok() ? *plan : RankPlan());
  }

  // 6 to 9
  int notices = 0;
  SaveOutcome outcome = Commit(job, prefix, attempt, notices);
  outcome.retry = !outcome.status.ok() && outcome.name.empty() && WorthRetrying(outcome.status) &&
                  attempt_number == job.first_try && !written_once_;
  if (!outcome.status.ok() && outcome.name.empty()) {
    DiscardAttempt(files_, settings_.root, {exchange_.generation(), job.step}, attempt);
  }
  std::string text = outcome.status.ok() ? "{}" : FormatError(outcome.status);
  text.insert(text.size() - 1,
              fmt::format("{}\"retry\":{},\"attempt\":{},\"name\":{},\"bytes\":{}",
                          outcome.status.ok() ? "" : ",", outcome.retry, QuoteJson(outcome.attempt),
                          QuoteJson(outcome.name), outcome.bytes));
  const Status told =
      exchange_.Put(fmt::format("{}/notice/{}", prefix, notices), text, TellBy(job));
  if (!told.ok()) Log().warn("the outcome of a checkpoint could not be told: {}", told.message());
  return outcome;
}

Status Saver::PublishStructure(const SaveJob& job, const std::string& prefix) {
  const std::string key = fmt::format("{}/structure/{}", prefix, exchange_.rank().value());
  if (!job.captured.ok()) return exchange_.Put(key, FormatError(job.captured), job.deadline);
  const std::string text = FormatStructure(job.snapshot->structure());
  const std::string hash = Digest(text);
  if (hash != published_structure_) {
    PERDURE_RETURN_IF_ERROR(exchange_.Put(
        fmt::format("/ckpt/structure/{}/{}", exchange_.rank().value(), hash), text, job.deadline));
    published_structure_ = hash;
  }
  return exchange_.Put(
      key, OneLine({{"hash", hash}, {"once", job.snapshot->streams_any() || !job.foreign.empty()}}),
      job.deadline);
}

Result<std::string> Saver::Prepare(const SaveJob& job, const std::string& prefix) {
  const auto world = static_cast<std::size_t>(exchange_.size());
  structure_hashes_.resize(world);
  structures_.resize(world);
  std::string all_hashes;
  written_once_ = false;
  Status first_error;
  for (std::size_t rank = 0; rank < world; ++rank) {
    const Result<std::string> text =
        exchange_.Get(fmt::format("{}/structure/{}", prefix, rank), job.deadline);
    PERDURE_RETURN_IF_ERROR(
        NameRank(text.status(), static_cast<int>(rank), "did not come to the checkpoint"));
    PERDURE_ASSIGN_OR_RETURN(const Json json, ParseJson(*text, "structure"));
    const Status told = ErrorIn(json).WithContext(fmt::format("rank {}", rank));
    if (!told.ok() && first_error.ok()) first_error = told;
    if (!told.ok()) continue;
    const std::string hash = json.value("hash", "");
    all_hashes += hash;
    written_once_ = written_once_ || json.value("once", false);
    if (structure_hashes_[rank] == hash) continue;
    const std::string key = fmt::format("/ckpt/structure/{}/{}", rank, hash);
    PERDURE_ASSIGN_OR_RETURN(const std::string full, exchange_.Get(key, job.deadline));
    PERDURE_ASSIGN_OR_RETURN(structures_[rank], ParseStructure(full, key));
    structure_hashes_[rank] = hash;
    exchange_.Forget(key, job.deadline);
  }
  // All ranks are here: what earlier tries said has been read, or never will be.
  for (const std::string& told : told_) exchange_.Forget(told, job.deadline);
  told_.assign({prefix + "/"});
  PERDURE_RETURN_IF_ERROR(first_error);
  const std::string plan_id = Digest(all_hashes);
  if (plan_id != write_plan_id_) {
    PERDURE_ASSIGN_OR_RETURN(write_plan_, PlanWrite(structures_, kSplitBytes));
    if (!write_plan_id_.empty()) {
      exchange_.Forget(fmt::format("/ckpt/plan/{}/", write_plan_id_), job.deadline);
      write_plan_id_.clear();
    }
    for (std::size_t rank = 0; rank < world; ++rank) {
      PERDURE_RETURN_IF_ERROR(exchange_.Put(fmt::format("/ckpt/plan/{}/{}", plan_id, rank),
                                            FormatRankPlan(write_plan_.ranks[rank]), job.deadline));
    }
    write_plan_id_ = plan_id;
  }
  const std::string attempt = RandomHex(kAttemptBytes);
  // Not even an attempt once fenced: the new claimant has swept.
  PERDURE_RETURN_IF_ERROR(CheckNotFenced(store_, exchange_.generation()));
  PERDURE_RETURN_IF_ERROR(
      MakeAttempt(files_, settings_.root, {exchange_.generation(), job.step}, attempt));
  return OneLine({{"attempt", attempt}, {"plan", plan_id}});
}

Result<RankPlan> Saver::PlanOf(const std::string& plan_id, const Structure& structure,
                               Deadline deadline) {
  if (plan_id != plan_id_) {
    const std::string key = fmt::format("/ckpt/plan/{}/{}", plan_id, exchange_.rank().value());
    PERDURE_ASSIGN_OR_RETURN(const std::string text, exchange_.Get(key, deadline));
    PERDURE_ASSIGN_OR_RETURN(plan_, ParseRankPlan(text, structure, key));
    plan_id_ = plan_id;
  }
  return plan_;
}

std::vector<ShardContent> Saver::ContentsOf(const SaveJob& job, const RankPlan& plan) {
  Snapshot* const snapshot = job.snapshot;
  std::vector<ShardContent> contents;
  for (const WriteItem& item : plan.items) {
    const Piece& piece = snapshot->structure()[item.piece];
    ShardContent content;
    content.piece.name = piece.name;
    content.piece.blob = piece.blob;
    content.piece.dtype = piece.dtype;
    content.piece.shape = piece.shape;
    content.piece.global_shape = piece.global_shape;
    content.piece.offset = piece.offset;
    std::int64_t begin = 0;
    if (!item.whole) {
      content.piece.shape[0] = item.row_begin;
      begin = ByteCount(piece.dtype, content.piece.shape).value();
      content.piece.shape[0] = item.row_end - item.row_begin;
      content.piece.offset[0] += item.row_begin;
    }
    const std::int64_t bytes = ByteCount(piece.dtype, content.piece.shape).value();
    if (const auto staged = snapshot->BytesOf(item.piece); staged.has_value()) {
      content.bytes =
          staged->subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(bytes));
    } else {
      content.read = [snapshot, index = item.piece, begin](std::int64_t offset,
                                                           std::span<std::byte> packed) {
        return snapshot->Read(index, begin + offset, packed);
      };
    }
    contents.push_back(std::move(content));
  }
  return contents;
}

Status Saver::DigestShared(const SaveJob& job, const RankPlan& plan) {
  shared_digests_.clear();
  for (const SharedPieces& shared : plan.shared) {
    std::vector<std::string>& digests = shared_digests_.emplace_back();
    for (const SharedPiece& piece : shared.pieces) {
      PERDURE_ASSIGN_OR_RETURN(std::string digest,
                               piece.part.has_value()
                                   ? job.snapshot->DigestOf(piece.piece, *piece.part)
                                   : job.snapshot->DigestOf(piece.piece));
      digests.push_back(std::move(digest));
    }
  }
  return Ok();
}

Status Saver::WriteAndReport(const SaveJob& job, const std::string& prefix,
                             const std::string& attempt, const RankPlan& plan) {
  const CheckpointId id{exchange_.generation(), job.step};
  PERDURE_RETURN_IF_ERROR(job.snapshot->WaitStaged(job.deadline));
  const std::string directory =
      JoinPath(settings_.root, FormatName({NameKind::kAttempt, id, attempt}));
  const ShardInfo info{id, attempt, exchange_.rank(), exchange_.size()};
  std::vector<ShardContent> contents = ContentsOf(job, plan);
  const std::int64_t bytes = DataBytes(contents);
  const auto shards = WriteShards(files_, directory, info, std::move(contents));
  Status written = SayHowMuch(shards.status(), bytes, directory);
  if (written.ok()) written = DigestShared(job, plan);
  job.snapshot->EndStreaming();
  PERDURE_RETURN_IF_ERROR(written);
  PERDURE_ASSIGN_OR_RETURN(
      const ForeignFiles foreign,
      TakeForeign(files_, job.foreign, directory, exchange_.rank(), exchange_.size()));
  // Only what the program cannot have changed under the copy may count (CKPT-1).
  PERDURE_RETURN_IF_ERROR(job.snapshot->WaitSealed(job.deadline));
  std::string digests;
  for (std::size_t set = 0; set < plan.shared.size(); ++set) {
    const SharedPieces& shared = plan.shared[set];
    DigestStream all;
    for (std::size_t i = 0; i < shared.pieces.size(); ++i) {
      all.Add(job.snapshot->structure()[shared.pieces[i].piece].name);
      all.Add(shared_digests_[set][i]);
    }
    digests +=
        fmt::format("{}\"{}\":\"{}\"", digests.empty() ? "" : ",", shared.holders, all.Finish());
  }
  std::string lines;
  for (const ManifestFile& file : *shards) {
    lines += fmt::format(
        "{}{{\"name\":\"{}\",\"bytes\":{},\"header_bytes\":{},\"header_xxh3_128\":\"{}\"}}",
        lines.empty() ? "" : ",", file.name, file.bytes, file.header_bytes, file.header_digest);
  }
  return exchange_.Put(fmt::format("{}/report/{}", prefix, exchange_.rank().value()),
                       fmt::format("{{\"attempt\":\"{}\",\"files\":[{}],\"digests\":{{{}}},"
                                   "\"foreign\":{{{}}}}}",
                                   attempt, lines, digests, FormatForeignReport(foreign)),
                       job.deadline);
}

SaveOutcome Saver::Commit(const SaveJob& job, const std::string& prefix, const std::string& attempt,
                          int& notices) {
  SaveOutcome outcome;
  const CheckpointId id{exchange_.generation(), job.step};
  Manifest manifest;
  std::vector<std::vector<std::string>> digests(write_plan_.holders.size());
  for (int rank = 0; rank < exchange_.size(); ++rank) {
    const std::string what = fmt::format("report of rank {}", rank);
    const Result<std::string> text =
        exchange_.Get(fmt::format("{}/report/{}", prefix, rank), job.deadline);
    outcome.status = NameRank(text.status(), rank, "did not write its part of the checkpoint");
    if (!outcome.status.ok()) return outcome;
    const Result<Json> report = ParseJson(*text, what);
    outcome.status = report.status();
    if (outcome.status.ok()) {
      outcome.status = ErrorIn(*report).WithContext(fmt::format("rank {}", rank));
    }
    if (!outcome.status.ok()) return outcome;
    if (report->value("attempt", "") != attempt) {
      outcome.status = Status(Code::kInternal, what + " is about another attempt");
      return outcome;
    }
    for (const Json& file : report->at("files")) {
      manifest.files.push_back({file.value("name", ""), file.value("bytes", std::int64_t{0}),
                                file.value("header_bytes", std::int64_t{0}),
                                file.value("header_xxh3_128", "")});
    }
    for (const auto& [part, files] : report->at("foreign").items()) {
      std::vector<ForeignFile>& of_part = manifest.foreign[part];
      for (const Json& file : files) {
        of_part.push_back({file.at(0).get<std::string>(), file.at(1).get<std::int64_t>(),
                           file.at(2).get<std::string>()});
      }
    }
    const Json none = Json::object();
    const Json& found = report->contains("digests") ? (*report)["digests"] : none;
    for (std::size_t set = 0; set < digests.size(); ++set) {
      const std::vector<int>& holders = write_plan_.holders[set];
      if (std::find(holders.begin(), holders.end(), rank) == holders.end()) continue;
      digests[set].push_back(found.value(std::to_string(set), ""));
    }
  }
  for (std::size_t set = 0; set < digests.size() && outcome.status.ok(); ++set) {
    outcome.status = Disagreement(job, prefix, static_cast<int>(set), digests[set], notices);
  }
  if (!outcome.status.ok()) return outcome;

  manifest.root_id = settings_.root_id;
  manifest.job = settings_.job;
  manifest.id = id;
  manifest.attempt = attempt;
  manifest.created = FormatWallTime(exchange_.clock().WallNow());
  manifest.world = exchange_.size();
  manifest.tensors = write_plan_.tensors;
  manifest.aliases = write_plan_.aliases;
  manifest.blobs = write_plan_.blobs;
  manifest.producer = kProducer;
  Result<CommitResult> committed = CommitAttempt(files_, settings_.root, manifest);
  outcome.status = committed.status();
  if (!outcome.status.ok()) return outcome;
  outcome.attempt = committed->attempt;
  outcome.name = committed->name;
  outcome.bytes = manifest.TotalBytes();
  durability_unknown_ = !committed->durable.ok();
  if (durability_unknown_) {
    outcome.status = committed->durable.WithContext(fmt::format(
        "{} is visible, but whether it survives a power loss is unknown", committed->name));
    return outcome;
  }
  return outcome;
}

// Rank 0: OK when all holders of a set reported one digest; else the error that names tensor and
// minority, after asking every rank for the digests of its tensors.
Status Saver::Disagreement(const SaveJob& job, const std::string& prefix, int holders,
                           const std::vector<std::string>& digests, int& notices) {
  const bool agree =
      std::adjacent_find(digests.begin(), digests.end(), std::not_equal_to<>()) == digests.end();
  if (agree) return Ok();
  PERDURE_RETURN_IF_ERROR(exchange_.Put(fmt::format("{}/notice/{}", prefix, notices),
                                        OneLine({{"details", holders}}), job.deadline));
  ++notices;
  std::map<std::string, std::map<std::string, std::vector<int>>> by_tensor;
  for (const int rank : write_plan_.holders[static_cast<std::size_t>(holders)]) {
    std::string text;
    if (rank == 0) {
      text = TensorDigests(job, plan_, holders);
    } else {
      PERDURE_ASSIGN_OR_RETURN(
          text, exchange_.Get(fmt::format("{}/details/{}", prefix, rank), job.deadline));
    }
    PERDURE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "details"));
    for (const auto& [name, digest] : json.items()) {
      by_tensor[name][digest.get<std::string>()].push_back(rank);
    }
  }
  std::string sentence;
  int named = 0;
  for (const auto& [tensor, camps] : by_tensor) {
    if (camps.size() < 2 || ++named > kNamedMax) continue;
    sentence += fmt::format("{}{}", sentence.empty() ? "" : "; ", NameMinority(tensor, camps));
  }
  if (named > kNamedMax) sentence += fmt::format("; and {} more tensors", named - kNamedMax);
  return Status(Code::kInvalidArgument,
                fmt::format("what all ranks should hold alike differs: {}", sentence));
}

std::string Saver::TensorDigests(const SaveJob& job, const RankPlan& plan, int holders) const {
  std::string text = "{";
  for (std::size_t set = 0; set < plan.shared.size(); ++set) {
    const SharedPieces& shared = plan.shared[set];
    if (shared.holders != holders) continue;
    for (std::size_t i = 0; i < shared.pieces.size(); ++i) {
      const SharedPiece& piece = shared.pieces[i];
      std::string name = job.snapshot->structure()[piece.piece].name;
      if (piece.part.has_value()) {
        name += fmt::format(" {} at {}, where pieces overlap", ToString(piece.part->shape),
                            ToString(piece.part->offset));
      }
      const bool known = set < shared_digests_.size() && i < shared_digests_[set].size();
      text += fmt::format("{}{}:\"{}\"", text.size() == 1 ? "" : ",", QuoteJson(name),
                          known ? shared_digests_[set][i] : "");
    }
  }
  return text + "}";
}

SaveOutcome Saver::ReadOutcome(const SaveJob& job, const std::string& prefix,
                               const RankPlan& plan) {
  SaveOutcome outcome;
  for (int notice = 0;; ++notice) {
    const Result<std::string> text =
        exchange_.Get(fmt::format("{}/notice/{}", prefix, notice), TellBy(job));
    outcome.status = NameRank(text.status(), 0, "did not tell the outcome of the checkpoint");
    if (!outcome.status.ok()) return outcome;
    const Result<Json> json = ParseJson(*text, "notice");
    outcome.status = json.status();
    if (!outcome.status.ok()) return outcome;
    if (json->contains("details")) {
      outcome.status =
          exchange_.Put(fmt::format("{}/details/{}", prefix, exchange_.rank().value()),
                        TensorDigests(job, plan, json->value("details", -1)), job.deadline);
      if (!outcome.status.ok()) return outcome;
      continue;
    }
    outcome.status = ErrorIn(*json);
    outcome.retry = json->value("retry", false);
    outcome.attempt = json->value("attempt", "");
    outcome.name = json->value("name", "");
    outcome.bytes = json->value("bytes", std::int64_t{0});
    return outcome;
  }
}

void Saver::TidyUp(const std::string& committed) {
  if (!exchange_.is_rank_0() || durability_unknown_) return;
  const Status hint = WriteLatest(store_, committed);
  if (!hint.ok()) Log().warn("the hint file was not written: {}", hint.message());
  const DeleterOptions options{settings_.root, settings_.root_id, exchange_.generation(),
                               settings_.retention};
  const Status status = RunRetention(files_, options, lineage_).status();
  if (!status.ok()) Log().warn("retiring old checkpoints: {}", status.message());
}

}  // namespace perdure
