#include "checkpoint/contents.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace perdure {

Result<Contents> Contents::Load(Files& files, const std::string& directory, Manifest manifest) {
  Contents contents(files, directory, std::move(manifest));
  for (std::size_t i = 0; i < contents.manifest_.files.size(); ++i) {
    PERDURE_ASSIGN_OR_RETURN(const std::unique_ptr<ShardReader> shard,
                             ShardReader::Open(files, directory, contents.manifest_.files[i]));
    for (const ShardPiece& piece : shard->index().pieces) {
      contents.pieces_[piece.name].push_back({i, piece});
    }
  }
  for (auto& [name, places] : contents.pieces_) {
    std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::tie(a.piece.offset, a.piece.shape) < std::tie(b.piece.offset, b.piece.shape);
    });
  }
  return contents;
}

const std::vector<Contents::Place>& Contents::PiecesOf(const std::string& name) const {
  const auto found = pieces_.find(manifest_.Stored(name));
  return found == pieces_.end() ? none_ : found->second;
}

Status Contents::ReadChunk(const Place& place, std::size_t chunk, std::span<std::byte> bytes) {
  if (open_ == nullptr || open_file_ != place.file) {
    PERDURE_ASSIGN_OR_RETURN(open_,
                             ShardReader::Open(*files_, directory_, manifest_.files[place.file]));
    open_file_ = place.file;
  }
  return open_->ReadChunk(place.piece, chunk, bytes);
}

}  // namespace perdure
