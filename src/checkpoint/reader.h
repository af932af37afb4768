// Puts wanted pieces together from the shards of a checkpoint, every byte verified (CKPT-6).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"
#include "perdure/ids.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

// Fills `target(i)` with wanted[i], whatever the layout was when it was saved; a name may be an
// alias. Opens the shard of
// `near` first, then the others until nothing is missing. Returns the bytes read. kDataLoss: the
// checkpoint is not what was written (file and tensor named); other errors are the disk's.
// When `manifest` is only a share (handout.h) and its files are not enough, `whole` gives all of
// it.
Result<std::int64_t> ReadPieces(Files& files, const std::string& directory,
                                const Manifest& manifest, Rank near, const Structure& wanted,
                                const std::function<std::span<std::byte>(std::size_t)>& target,
                                const std::function<Result<Manifest>()>& whole = nullptr);

}  // namespace perdure
