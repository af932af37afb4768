#include "comm/backends/gloo/peer_mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread.h"
#include "comm/backends/gloo/rendezvous.h"

namespace perdure {
namespace {

using std::chrono::milliseconds;

constexpr std::uint64_t kFrameSlot = 1;
constexpr std::uint64_t kBulkSlot = 2;
constexpr milliseconds kConnectSlice{250};
constexpr milliseconds kDrainPoll{1};
// Gloo wakes who waits on a connection just before it says that the connection is closed.
constexpr milliseconds kCauseFollows{500};

std::uint64_t HashOf(const std::string& text) {
  // FNV-1a, http://www.isthe.com/chongo/tech/comp/fnv/
  std::uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return hash;
}

}  // namespace

PeerMesh::PeerMesh(Group group, GlooOptions options)
    : group_(std::move(group)),
      options_(std::move(options)),
      lost_(static_cast<std::size_t>(group_.size())),
      left_(static_cast<std::size_t>(group_.size())) {}

PeerMesh::~PeerMesh() {
  Close(false, Deadline(MonotonicTime()));
  mailboxes_.clear();
}

Result<std::unique_ptr<PeerMesh>> PeerMesh::Connect(const Group& group, const GlooOptions& options,
                                                    KeyValue& store, FailureArbiter& arbiter,
                                                    Deadline deadline) {
  std::unique_ptr<PeerMesh> mesh(new PeerMesh(group, options));
  try {
    PERDURE_RETURN_IF_ERROR(mesh->Open(store, arbiter, deadline));
  } catch (const std::exception& error) {
    return Status(Code::kUnavailable, fmt::format("communicator {}: {}", group.name, error.what()));
  }
  return mesh;
}

Status PeerMesh::Open(KeyValue& store, FailureArbiter& arbiter, Deadline deadline) {
  PERDURE_ASSIGN_OR_RETURN(auto device, OpenGlooDevice(options_.interface, options_.host));
  context_ = std::make_shared<GuardedContext>(std::move(device), group_.rank, group_.size(), *this);
  // Used by Gloo only for socket options that mean nothing on non-blocking sockets.
  context_->setTimeout(std::chrono::seconds(30));
  std::vector<std::vector<char>> listening(static_cast<std::size_t>(group_.size()));
  mailboxes_.resize(static_cast<std::size_t>(group_.size()));
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank) continue;
    const auto index = static_cast<std::size_t>(peer);
    auto box = std::make_unique<Mailbox>();
    for (std::size_t i = 0; i < 2; ++i) {
      box->in_memory[i].resize(kFrameBytesMax);
      box->out_memory[i].resize(kFrameBytesMax);
      box->in[i] =
          std::make_unique<WaitableBuffer>(context_, box->in_memory[i].data(), kFrameBytesMax);
      box->out[i] =
          std::make_unique<WaitableBuffer>(context_, box->out_memory[i].data(), kFrameBytesMax);
    }
    mailboxes_[index] = std::move(box);
    listening[index] = context_->createPair(peer)->address().bytes();
  }
  PERDURE_ASSIGN_OR_RETURN(const auto addresses,
                           ExchangeAddresses(group_, listening, store, arbiter, deadline));
  PERDURE_RETURN_IF_ERROR(ConnectPairs(addresses, arbiter, deadline));
  return SayHello(arbiter, deadline);
}

Status PeerMesh::ConnectPairs(const std::vector<std::vector<char>>& addresses,
                              FailureArbiter& arbiter, Deadline deadline) {
  for (int peer = 0; peer < group_.rank; ++peer) {
    const Status dialled = context_->pair(peer).Dial(addresses[static_cast<std::size_t>(peer)]);
    if (!dialled.ok()) return MissingRanks(group_, {peer}, dialled.message(), arbiter);
  }
  std::vector<int> missing;
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank) continue;
    WaitOutcome outcome = WaitOutcome::kLate;
    while (outcome == WaitOutcome::kLate) {
      outcome =
          context_->pair(peer).AwaitConnected(Earlier(deadline, Deadline::After(kConnectSlice)));
      if (outcome == WaitOutcome::kBroken) {
        return MissingRanks(group_, {peer}, "its address refuses connections", arbiter);
      }
      if (outcome == WaitOutcome::kDone || deadline.Passed(RealClock().Now())) break;
      if (arbiter.KnownCause(group_.id, group_.members, deadline).has_value()) {
        return MissingRanks(group_, {peer}, "it has not connected", arbiter);
      }
    }
    if (outcome != WaitOutcome::kDone) missing.push_back(peer);
  }
  if (missing.empty()) return Ok();
  return MissingRanks(group_, missing, "it has not connected within the init deadline", arbiter);
}

Status PeerMesh::SayHello(FailureArbiter& arbiter, Deadline deadline) {
  const FrameHeader hello{.kind = FrameKind::kHello, .sequence = HashOf(group_.id)};
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank) continue;
    for (auto& in : mailbox(peer).in) in->recv(peer, kFrameSlot, 0, kFrameBytesMax);
    (void)SendFrame(peer, hello, nullptr, 0, deadline);
  }
  std::vector<int> missing;
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank) continue;
    const WaitOutcome outcome = AwaitFrame(peer, deadline);
    if (outcome == WaitOutcome::kLate) {
      missing.push_back(peer);
      continue;
    }
    if (outcome != WaitOutcome::kDone) {
      const int lost = first_lost_.load();
      return MissingRanks(group_, {lost < 0 ? peer : lost}, "its connection closed during init",
                          arbiter);
    }
    const FrameHeader& header = frame(peer);
    if (header.magic != kFrameMagic || header.kind != FrameKind::kHello || header.from != peer ||
        header.to != group_.rank || header.sequence != hello.sequence ||
        header.generation != static_cast<std::uint64_t>(group_.generation.value())) {
      return Status(Code::kFenced,
                    fmt::format("communicator {}: who connected as rank {} is of another "
                                "generation, another communicator, or not a rank at all",
                                group_.name, group_.JobRank(peer).value()));
    }
    ReleaseFrame(peer);
  }
  if (missing.empty()) return Ok();
  return MissingRanks(group_, missing, "it connected but does not answer", arbiter);
}

PeerMesh::Registration::Registration(PeerMesh& mesh, void* data, std::size_t bytes)
    : mesh_(mesh), buffer_(std::make_unique<WaitableBuffer>(mesh.context_, data, bytes)) {}

PeerMesh::Registration::~Registration() {
  if (buffer_->idle()) return;
  // Under the locks of all pairs the loop uses no buffer, and later finds this one gone.
  std::vector<std::unique_lock<std::mutex>> held;
  for (int peer = 0; peer < mesh_.group_.size(); ++peer) {
    if (peer != mesh_.group_.rank) held.push_back(mesh_.context_->pair(peer).Hold());
  }
  buffer_.reset();
}

bool PeerMesh::PostSend(WaitableBuffer& buffer, int peer, std::size_t offset, std::size_t bytes) {
  try {
    buffer.send(peer, kBulkSlot, offset, bytes);
    buffer.CountPosted();
    return true;
  } catch (const std::exception&) {
    return false;  // Explain says which connection
  }
}

bool PeerMesh::PostRecv(WaitableBuffer& buffer, int peer, std::size_t offset, std::size_t bytes) {
  try {
    buffer.recv(peer, kBulkSlot, offset, bytes);
    buffer.CountPosted();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

template <class Wait>
WaitOutcome PeerMesh::Guarded(WaitableBuffer& buffer, const Wait& wait) {
  {
    std::lock_guard<std::mutex> lock(wait_mutex_);
    if (interrupted_) return WaitOutcome::kInterrupted;
    waiting_ = &buffer;
  }
  const WaitOutcome outcome = wait();
  std::lock_guard<std::mutex> lock(wait_mutex_);
  waiting_ = nullptr;
  return outcome;
}

WaitOutcome PeerMesh::AwaitRecv(WaitableBuffer& buffer, Deadline deadline) {
  return Guarded(buffer, [&] { return buffer.AwaitRecv(deadline); });
}

WaitOutcome PeerMesh::AwaitSend(WaitableBuffer& buffer, Deadline deadline) {
  return Guarded(buffer, [&] { return buffer.AwaitSend(deadline); });
}

WaitOutcome PeerMesh::SendFrame(int peer, FrameHeader header, const void* payload,
                                std::size_t bytes, Deadline deadline) {
  PERDURE_CHECK(bytes <= kEagerBytesMax, "a frame that is too large");
  Mailbox& box = mailbox(peer);
  const auto index = static_cast<std::size_t>(box.next_out);
  WaitableBuffer& buffer = *box.out[index];
  if (box.out_under_way[index]) {
    const WaitOutcome outcome = AwaitSend(buffer, deadline);
    if (outcome != WaitOutcome::kDone) return outcome;
    box.out_under_way[index] = false;
  }
  header.from = group_.rank;
  header.to = peer;
  header.generation = static_cast<std::uint64_t>(group_.generation.value());
  header.payload_bytes = bytes;
  char* const memory = box.out_memory[index].data();
  std::memcpy(memory, &header, sizeof(header));
  if (bytes > 0) std::memcpy(memory + sizeof(header), payload, bytes);
  try {
    buffer.send(peer, kFrameSlot, 0, sizeof(header) + bytes);
  } catch (const std::exception&) {
    return WaitOutcome::kBroken;
  }
  box.out_under_way[index] = true;
  box.next_out ^= 1;
  return WaitOutcome::kDone;
}

WaitOutcome PeerMesh::AwaitFrame(int peer, Deadline deadline) {
  Mailbox& box = mailbox(peer);
  return AwaitRecv(*box.in[static_cast<std::size_t>(box.next_in)], deadline);
}

const FrameHeader& PeerMesh::frame(int peer) const {
  const Mailbox& box = mailbox(peer);
  return *reinterpret_cast<const FrameHeader*>(
      box.in_memory[static_cast<std::size_t>(box.next_in)].data());
}

const char* PeerMesh::payload(int peer) const {
  const Mailbox& box = mailbox(peer);
  return box.in_memory[static_cast<std::size_t>(box.next_in)].data() + sizeof(FrameHeader);
}

void PeerMesh::ReleaseFrame(int peer) {
  Mailbox& box = mailbox(peer);
  try {
    box.in[static_cast<std::size_t>(box.next_in)]->recv(peer, kFrameSlot, 0, kFrameBytesMax);
  } catch (const std::exception&) {
    // The connection is gone; the next wait on it says so.
  }
  box.next_in ^= 1;
}

bool PeerMesh::HasCause() const {
  return stopped_.load() || first_lost_.load() >= 0 ||
         std::any_of(left_.begin(), left_.end(), [](const auto& left) { return left.load(); });
}

Trouble PeerMesh::Explain(int peer) {
  {
    std::unique_lock<std::mutex> lock(wait_mutex_);
    cause_known_.wait_until(lock, Deadline::After(kCauseFollows).at(), [&] { return HasCause(); });
  }
  if (stopped_.load()) return {.kind = Trouble::Kind::kWoken};
  if (const int lost = first_lost_.load(); lost >= 0) {
    return {.kind = Trouble::Kind::kPeerClosed, .peer = lost};
  }
  if (peer >= 0 && left_[static_cast<std::size_t>(peer)].load()) {
    return {.kind = Trouble::Kind::kPeerLeft, .peer = peer};
  }
  for (int other = 0; other < group_.size(); ++other) {
    if (left_[static_cast<std::size_t>(other)].load()) {
      return {.kind = Trouble::Kind::kPeerLeft, .peer = other};
    }
  }
  return {.kind = Trouble::Kind::kLocal,
          .peer = group_.rank,
          .text = "its transport failed without a reason"};
}

void PeerMesh::Interrupt() {
  std::lock_guard<std::mutex> lock(wait_mutex_);
  interrupted_ = true;
  if (waiting_ != nullptr) waiting_->Interrupt();
  cause_known_.notify_all();
}

void PeerMesh::Stop() {
  stopped_.store(true);
  Interrupt();
}

bool PeerMesh::Lost(int peer) const {
  return lost_[static_cast<std::size_t>(peer)].load();
}

bool PeerMesh::SaidGoodbye(int peer) {
  Mailbox& box = mailbox(peer);
  for (std::size_t i = 0; i < 2; ++i) {
    if (!box.in[i]->HasReceived()) continue;
    const auto* header = reinterpret_cast<const FrameHeader*>(box.in_memory[i].data());
    if (header->kind == FrameKind::kGoodbye) return true;
  }
  return false;
}

void PeerMesh::OnPairClosed(int peer) noexcept {
  if (closing_.load()) return;
  lost_[static_cast<std::size_t>(peer)].store(true);
  if (SaidGoodbye(peer)) {
    std::lock_guard<std::mutex> lock(wait_mutex_);
    left_[static_cast<std::size_t>(peer)].store(true);
    cause_known_.notify_all();
    return;
  }
  int none = -1;
  first_lost_.compare_exchange_strong(none, peer);
  Interrupt();
}

void PeerMesh::SayGoodbye(Deadline deadline) {
  const FrameHeader goodbye{.kind = FrameKind::kGoodbye};
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank || Lost(peer)) continue;
    (void)SendFrame(peer, goodbye, nullptr, 0, deadline);
  }
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank) continue;
    Mailbox& box = mailbox(peer);
    for (std::size_t i = 0; i < 2; ++i) {
      if (!box.out_under_way[i] || Lost(peer)) continue;
      (void)box.out[i]->AwaitSend(deadline);
    }
    while (context_->pair(peer).BytesUnderWay() > 0 && !deadline.Passed(RealClock().Now())) {
      SleepFor(kDrainPoll);
    }
  }
}

void PeerMesh::Close(bool in_order, Deadline deadline) {
  if (closing_.load()) return;
  if (context_ == nullptr) return;
  if (in_order) SayGoodbye(deadline);
  closing_.store(true);
  for (int peer = 0; peer < group_.size(); ++peer) {
    if (peer == group_.rank || context_->getPair(peer) == nullptr) continue;
    try {
      context_->pair(peer).close();
    } catch (const std::exception& error) {
      Log().debug("communicator {}: closing rank {}: {}", group_.name, group_.JobRank(peer).value(),
                  error.what());
    }
  }
}

}  // namespace perdure
