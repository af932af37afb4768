// Chooses the algorithm of each operation: eager.h for what fits into a frame, bulk.h for the rest.
// Every operation begins with a frame that says what it is; nobody believes a payload before the
// frame in front of it was compared with its own call.
#include "comm/backends/gloo/gloo_backend.h"

#include <utility>

#include "comm/backends/gloo/bulk.h"
#include "comm/backends/gloo/eager.h"
#include "comm/backends/gloo/frame_exchange.h"

namespace perdure {
namespace {

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(std::unique_ptr<PeerMesh> mesh)
      : mesh_(std::move(mesh)), exchange_(*mesh_) {}

  MaybeTrouble Run(const Operation& operation, const Budget& budget,
                   std::atomic<std::uint64_t>& bytes_done) override {
    Course course{operation, budget, bytes_done,
                  Earlier(budget.end, Deadline::After(budget.not_joined))};
    FrameExchange& x = exchange_;
    const bool small = operation.bytes <= kEagerBytesMax;
    switch (operation.call.verb) {
      case Verb::kAllReduce:
        return small ? eager::AllReduce(x, course) : bulk::AllReduce(x, course, scratch_);
      case Verb::kReduce:
        return small ? eager::Reduce(x, course) : bulk::Reduce(x, course, scratch_);
      case Verb::kReduceScatter:
        return small ? eager::ReduceScatter(x, course) : bulk::ReduceScatter(x, course, scratch_);
      case Verb::kBroadcast:
        return small ? eager::Broadcast(x, course) : bulk::Broadcast(x, course);
      case Verb::kAllGather:
        return small ? eager::AllGather(x, course) : bulk::AllGather(x, course);
      case Verb::kAllToAll:
        return small ? eager::AllToAll(x, course) : bulk::AllToAll(x, course);
      case Verb::kSend:
        return small ? eager::Send(x, course) : bulk::Send(x, course);
      case Verb::kRecv:
        return small ? eager::Recv(x, course) : bulk::Recv(x, course);
      case Verb::kBarrier:
        return eager::Barrier(x, course);
    }
    return Trouble{.kind = Trouble::Kind::kLocal, .peer = x.rank, .text = "an unknown verb"};
  }

  void Wake() override { mesh_->Stop(); }
  bool Lost(int peer) const override { return mesh_->Lost(peer); }
  void Close(bool in_order, Deadline deadline) override { mesh_->Close(in_order, deadline); }

 private:
  const std::unique_ptr<PeerMesh> mesh_;
  FrameExchange exchange_;
  bulk::Scratch scratch_;
};

}  // namespace

Result<std::unique_ptr<Backend>> ConnectGlooBackend(const Group& group, const GlooOptions& options,
                                                    KeyValue& store, FailureArbiter& arbiter,
                                                    Deadline deadline) {
  PERDURE_ASSIGN_OR_RETURN(std::unique_ptr<PeerMesh> mesh,
                           PeerMesh::Connect(group, options, store, arbiter, deadline));
  return std::unique_ptr<Backend>(std::make_unique<GlooBackend>(std::move(mesh)));
}

}  // namespace perdure
