#include "checkpoint/hash.h"

#include <fmt/format.h>
#include <xxhash.h>

#include "base/check.h"

namespace perdure {
namespace {

std::string HexOf(XXH128_hash_t hash) {
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

}  // namespace

std::uint64_t Hash64(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string Hex64(std::uint64_t hash) {
  return fmt::format("{:016x}", hash);
}

std::string Digest(std::span<const std::byte> bytes) {
  return HexOf(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string Digest(std::string_view text) {
  return Digest(BytesOf(text));
}

struct DigestStream::State {
  XXH3_state_t* xxh = nullptr;
};

DigestStream::DigestStream() : state_(std::make_unique<State>()) {
  state_->xxh = XXH3_createState();
  PERDURE_CHECK(state_->xxh != nullptr, "out of memory");
  XXH3_128bits_reset(state_->xxh);
}

DigestStream::~DigestStream() {
  XXH3_freeState(state_->xxh);
}

void DigestStream::Add(std::span<const std::byte> bytes) {
  XXH3_128bits_update(state_->xxh, bytes.data(), bytes.size());
}

void DigestStream::Add(std::string_view text) {
  Add(BytesOf(text));
}

std::string DigestStream::Finish() const {
  return HexOf(XXH3_128bits_digest(state_->xxh));
}

}  // namespace perdure
