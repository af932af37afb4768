#include "checkpoint/foreign_init.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>

#include "base/log.h"
#include "checkpoint/json.h"
#include "checkpoint/layout.h"
#include "checkpoint/restore_answer.h"
#include "device/copy_streams.h"

namespace perdure {
namespace {

constexpr const char* kForeignIndexName = "model.safetensors.index.json";
constexpr const char* kForeignFileName = "model.safetensors";
constexpr std::int64_t kForeignIndexBytesMax = std::int64_t{256} << 20;
// Differences told in one error; the rest is counted.
constexpr std::size_t kInitLinesMax = 100;
// Runs that are shorter than this are read together with what lies between them.
constexpr std::int64_t kShortRunBytes = 64 << 10;

class ForeignInitializer {
 public:
  ForeignInitializer(const InitFrom& from, Exchange& exchange, Files& files, Parts& parts,
                     Staging& staging, const Devices& devices, Deadline deadline)
      : from_(from),
        exchange_(exchange),
        files_(files),
        parts_(parts),
        staging_(staging),
        streams_(devices),
        deadline_(deadline) {}

  Result<InitReport> Run();

 private:
  // 1. The differences go into `lines_`.
  Status Read();
  void Compare(const LocalState& state);
  Status ReadPiece(const Piece& piece, const ForeignTensors::Place& place,
                   std::span<std::byte> target);
  // 2. On rank 0: the answers in, the decision out.
  Status Decide();
  // 3
  Status HandOver();

  const InitFrom& from_;
  Exchange& exchange_;
  Files& files_;
  Parts& parts_;
  Staging& staging_;
  CopyStreams streams_;
  const Deadline deadline_;

  std::optional<ForeignTensors> foreign_;
  Structure wanted_;                              // what the files give this rank
  std::vector<TensorView> views_;                 // where it goes
  std::vector<const ForeignTensors::Place*> at_;  // where it comes from
  std::set<std::string> used_;                    // names in the files
  std::set<std::string> kept_parts_;              // parts that the table does not mention
  std::vector<std::string> lines_;
  std::size_t open_file_ = 0;
  std::unique_ptr<ReadableFile> open_;
  InitReport report_;
};

void ForeignInitializer::Compare(const LocalState& state) {
  for (std::size_t i = 0; i < state.structure.size(); ++i) {
    const Piece& piece = state.structure[i];
    if (piece.blob) continue;
    const std::optional<std::string> name = ForeignName(from_.names, piece.name);
    if (!name.has_value()) {
      kept_parts_.insert(piece.name.substr(0, piece.name.find('.')));
      continue;
    }
    const auto found = foreign_->tensors().find(*name);
    if (found == foreign_->tensors().end()) {
      lines_.push_back(fmt::format("tensor {}: {} is not in the files", piece.name, *name));
      continue;
    }
    used_.insert(*name);
    const SafetensorsEntry& entry = found->second.entry;
    if (entry.dtype != piece.dtype) {
      lines_.push_back(fmt::format("tensor {}: dtype {} in the program, {} in the files (as {})",
                                   piece.name, NameOf(piece.dtype), NameOf(entry.dtype), *name));
    }
    if (entry.shape != piece.global_shape) {
      lines_.push_back(fmt::format("tensor {}: shape {} in the program, {} in the files (as {})",
                                   piece.name, ToString(piece.global_shape), ToString(entry.shape),
                                   *name));
    }
    wanted_.push_back(piece);
    views_.push_back(state.entries[i].view);
    at_.push_back(&found->second);
  }
}

Status ForeignInitializer::ReadPiece(const Piece& piece, const ForeignTensors::Place& place,
                                     std::span<std::byte> target) {
  if (target.empty()) return Ok();
  if (open_ == nullptr || open_file_ != place.file) {
    PERDURE_ASSIGN_OR_RETURN(open_, files_.Open(foreign_->files()[place.file]));
    open_file_ = place.file;
  }
  const Box whole{Shape(piece.global_shape.size(), 0), piece.global_shape};
  const Box mine{piece.offset, piece.shape};
  PERDURE_ASSIGN_OR_RETURN(const std::vector<ByteRun> runs, RunsOf(piece.dtype, whole, mine, mine));
  const std::int64_t start = place.data_start + place.entry.begin;
  report_.bytes += static_cast<std::int64_t>(target.size());
  if (runs.empty()) return Ok();
  const std::int64_t first = runs.front().source;
  const std::int64_t span = runs.back().source + runs.back().bytes - first;
  if (runs.size() == 1 || static_cast<std::int64_t>(target.size()) >=
                              kShortRunBytes * static_cast<std::int64_t>(runs.size())) {
    for (const ByteRun& run : runs) {
      PERDURE_RETURN_IF_ERROR(
          open_->Read(start + run.source, target.subspan(static_cast<std::size_t>(run.target),
                                                         static_cast<std::size_t>(run.bytes))));
    }
    return Ok();
  }
  std::vector<std::byte> between(static_cast<std::size_t>(span));
  PERDURE_RETURN_IF_ERROR(open_->Read(start + first, between));
  for (const ByteRun& run : runs) {
    std::memcpy(target.data() + run.target, between.data() + (run.source - first),
                static_cast<std::size_t>(run.bytes));
  }
  return Ok();
}

Status ForeignInitializer::Read() {
  PERDURE_ASSIGN_OR_RETURN(foreign_, ForeignTensors::Open(files_, from_.path));
  PERDURE_ASSIGN_OR_RETURN(const LocalState state, parts_.Describe());
  Compare(state);
  if (!lines_.empty()) return Ok();
  PERDURE_RETURN_IF_ERROR(staging_.Shape(wanted_));
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    PERDURE_RETURN_IF_ERROR(ReadPiece(wanted_[i], *at_[i], staging_.BytesOf(i))
                                .WithContext(foreign_->files()[at_[i]->file]));
  }
  report_.tensors = static_cast<std::int64_t>(wanted_.size());
  return Ok();
}

Status ForeignInitializer::Decide() {
  std::vector<std::string> lines;
  std::set<std::string> seen;
  std::vector<bool> used(foreign_.has_value() ? foreign_->tensors().size() : 0, false);
  for (int rank = 0; rank < exchange_.size(); ++rank) {
    PERDURE_ASSIGN_OR_RETURN(const std::string text,
                             exchange_.Get(fmt::format("/ckpt/init/answer/{}", rank), deadline_));
    PERDURE_ASSIGN_OR_RETURN(const RestoreAnswer answer, ParseRestoreAnswer(text));
    PERDURE_RETURN_IF_ERROR(answer.error.WithContext(fmt::format("rank {}", rank)));
    for (const std::string& line : answer.lines) {
      if (seen.insert(line).second) lines.push_back(line);
    }
    if (answer.used.size() != used.size()) {
      return Status(Code::kFailedPrecondition,
                    fmt::format("rank {} sees other files than rank 0", rank));
    }
    for (std::size_t i = 0; i < used.size(); ++i) used[i] = used[i] || answer.used[i] == '1';
  }
  std::size_t at = 0;
  for (const auto& [name, place] : foreign_->tensors()) {
    if (used[at++]) continue;
    lines.push_back(
        fmt::format("{}: in the files, no tensor of the program is mapped to it", name));
  }
  if (lines.empty()) return Ok();
  std::string all;
  for (std::size_t i = 0; i < lines.size() && i < kInitLinesMax; ++i) all += "\n  " + lines[i];
  if (lines.size() > kInitLinesMax) {
    all += fmt::format("\n  and {} more", lines.size() - kInitLinesMax);
  }
  return Status(Code::kFailedPrecondition,
                fmt::format("it does not fit this program ({} differences):{}", lines.size(), all));
}

Status ForeignInitializer::HandOver() {
  PERDURE_RETURN_IF_ERROR(streams_.FollowProgram());
  for (std::size_t i = 0; i < wanted_.size(); ++i) {
    PERDURE_ASSIGN_OR_RETURN(CopyStream* const stream, streams_.For(views_[i]));
    PERDURE_RETURN_IF_ERROR(
        Unpack(staging_.BytesOf(i), 0, views_[i], *stream).WithContext(wanted_[i].name));
  }
  return streams_.Drain(deadline_);
}

Result<InitReport> ForeignInitializer::Run() {
  const Deadline tell_by(deadline_.at() + std::chrono::seconds(5));
  RestoreAnswer answer;
  answer.error = Read();
  answer.lines = lines_;
  answer.kind = !answer.error.ok()     ? RestoreAnswer::Kind::kError
                : answer.lines.empty() ? RestoreAnswer::Kind::kOk
                                       : RestoreAnswer::Kind::kDifferent;
  if (foreign_.has_value()) {
    for (const auto& [name, place] : foreign_->tensors()) {
      answer.used += used_.count(name) != 0 ? '1' : '0';
    }
  }
  PERDURE_RETURN_IF_ERROR(
      exchange_.Put(fmt::format("/ckpt/init/answer/{}", exchange_.rank().value()),
                    FormatRestoreAnswer(answer), tell_by));
  constexpr const char* kInitDecisionKey = "/ckpt/init/decision";
  if (exchange_.is_rank_0()) {
    const Status decided = Decide();
    PERDURE_RETURN_IF_ERROR(
        exchange_.Put(kInitDecisionKey, decided.ok() ? "{}" : FormatError(decided), tell_by));
  }
  PERDURE_ASSIGN_OR_RETURN(const std::string text, exchange_.Get(kInitDecisionKey, tell_by));
  PERDURE_ASSIGN_OR_RETURN(const nlohmann::json decision, ParseJson(text, "decision"));
  PERDURE_RETURN_IF_ERROR(ErrorIn(decision).WithContext(fmt::format("init_from {}", from_.path)));
  PERDURE_RETURN_IF_ERROR(HandOver());
  if (exchange_.is_rank_0()) {
    std::string kept;
    for (const std::string& part : kept_parts_) kept += (kept.empty() ? "" : ", ") + part;
    Log().warn(
        "NEW RUN FROM FOREIGN FILES: {} tensors of {} ({} file{}) became the first values; this is "
        "not a resume, and nothing but names, dtypes and shapes could be checked{}",
        foreign_->tensors().size(), from_.path, foreign_->files().size(),
        foreign_->files().size() == 1 ? "" : "s",
        kept.empty() ? "" : fmt::format("; as the program made them: {}", kept));
  }
  return report_;
}

}  // namespace

std::optional<std::string> ForeignName(const std::map<std::string, std::string>& names,
                                       const std::string& name) {
  if (const auto exact = names.find(name); exact != names.end()) {
    return exact->second.empty() ? std::nullopt : std::optional(exact->second);
  }
  std::optional<std::string> found;
  std::size_t longest = 0;
  for (const auto& [ours, theirs] : names) {
    const bool prefix = ours.empty() || ours.back() == '.';
    if (!prefix || name.compare(0, ours.size(), ours) != 0) continue;
    if (found.has_value() && ours.size() < longest) continue;
    longest = ours.size();
    found = theirs + name.substr(ours.size());
  }
  return found;
}

Status ForeignTensors::Add(Files& files, const std::string& path) {
  PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<ReadableFile> file, files.Open(path));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t bytes, file->Size());
  std::byte first_8[8];
  PERDURE_RETURN_IF_ERROR(file->Read(0, first_8).WithContext(path));
  PERDURE_ASSIGN_OR_RETURN(const std::int64_t length, ParseSafetensorsLength(first_8, bytes, path));
  std::string text(static_cast<std::size_t>(length), '\0');
  PERDURE_RETURN_IF_ERROR(
      file->Read(8, std::as_writable_bytes(std::span<char>(text.data(), text.size()))));
  PERDURE_ASSIGN_OR_RETURN(const SafetensorsHeader header,
                           ParseSafetensorsHeader(text, bytes, path));
  for (const SafetensorsEntry& entry : header.entries) {
    const auto [there, added] =
        tensors_.emplace(entry.name, Place{files_.size(), header.data_start, entry});
    if (!added) {
      return Status(Code::kDataLoss, fmt::format("tensor {} is both in {} and in {}", entry.name,
                                                 files_[there->second.file], path));
    }
  }
  files_.push_back(path);
  return Ok();
}

Result<ForeignTensors> ForeignTensors::Open(Files& files, const std::string& path) {
  ForeignTensors foreign;
  PERDURE_ASSIGN_OR_RETURN(const FileInfo info, files.Info(path));
  // A link may lead to either: the caches of model hubs consist of links.
  const bool link_to_file = info.kind == FileKind::kOther && !files.List(path).ok();
  if (info.kind == FileKind::kFile || link_to_file) {
    PERDURE_RETURN_IF_ERROR(foreign.Add(files, path));
    return foreign;
  }
  const std::string index = JoinPath(path, kForeignIndexName);
  const Result<std::string> text = ReadWholeFile(files, index, kForeignIndexBytesMax);
  if (text.status().code() == Code::kNotFound) {
    const std::string one = JoinPath(path, kForeignFileName);
    if (files.Info(one).status().code() == Code::kNotFound) {
      return Status(Code::kNotFound, fmt::format("{} holds neither {} nor {}", path,
                                                 kForeignIndexName, kForeignFileName));
    }
    PERDURE_RETURN_IF_ERROR(foreign.Add(files, one));
    return foreign;
  }
  PERDURE_RETURN_IF_ERROR(text.status());
  PERDURE_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(*text, index));
  PERDURE_ASSIGN_OR_RETURN(const nlohmann::json* const map,
                           JsonMember(json, "weight_map", nlohmann::json::value_t::object, index));
  std::map<std::string, std::string> file_of;
  std::set<std::string> names;
  for (const auto& [tensor, item] : map->items()) {
    PERDURE_ASSIGN_OR_RETURN(const std::string name, JsonText(*map, tensor.c_str(), index));
    if (name.empty() || name.find('/') != std::string::npos || name == "." || name == "..") {
      return Status(Code::kDataLoss,
                    fmt::format("{}: \"{}\" is not the name of a file beside it", index, name));
    }
    file_of[tensor] = JoinPath(path, name);
    names.insert(name);
  }
  for (const std::string& name : names) {
    PERDURE_RETURN_IF_ERROR(foreign.Add(files, JoinPath(path, name)));
  }
  for (const auto& [tensor, file] : file_of) {
    const auto found = foreign.tensors_.find(tensor);
    if (found == foreign.tensors_.end() || foreign.files_[found->second.file] != file) {
      return Status(Code::kDataLoss, fmt::format("{} says that {} holds {}, which it does not",
                                                 index, file, tensor));
    }
  }
  return foreign;
}

Result<InitReport> RunForeignInit(const InitFrom& from, Exchange& exchange, Files& files,
                                  Parts& parts, Staging& staging, const Devices& devices,
                                  Deadline deadline) {
  try {
    return ForeignInitializer(from, exchange, files, parts, staging, devices, deadline).Run();
  } catch (const nlohmann::json::exception& error) {
    // Only a message of another build could have a value of another type.
    return Status(Code::kInternal, fmt::format("a message between ranks: {}", error.what()));
  }
}

}  // namespace perdure
