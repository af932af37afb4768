// Large operations: a frame says what comes, then bulk data follows in segments; a segment is
// passed on while the next one arrives. Lane thread.
//   all_reduce, reduce_scatter, all_gather   a ring (ring_plan.h)
//   broadcast, reduce                        a chain, from or to the root
//   all_to_all      one exchange for each distance between ranks
//   send, recv      the receiver answers the frame, so that the sender knows it has joined
// In the ring each chunk is completed in one place, in ring order, and then copied: the same bits
// on all ranks and in every run.
#pragma once

#include <vector>

#include "comm/backends/gloo/frame_exchange.h"

namespace perdure::bulk {

// Room for what arrives to be reduced; grows to what the operations need and stays.
using Scratch = std::vector<char>;

// Blocks of a reduce_scatter are worked off in pieces of this size, which bounds its scratch to
// that times the number of ranks.
inline constexpr std::size_t kReduceScatterPieceMax = 8 << 20;

MaybeTrouble AllReduce(FrameExchange& x, Course& course, Scratch& scratch);
MaybeTrouble Reduce(FrameExchange& x, Course& course, Scratch& scratch);
MaybeTrouble ReduceScatter(FrameExchange& x, Course& course, Scratch& scratch);
MaybeTrouble Broadcast(FrameExchange& x, Course& course);
MaybeTrouble AllGather(FrameExchange& x, Course& course);
MaybeTrouble AllToAll(FrameExchange& x, Course& course);
MaybeTrouble Send(FrameExchange& x, Course& course);
MaybeTrouble Recv(FrameExchange& x, Course& course);

}  // namespace perdure::bulk
