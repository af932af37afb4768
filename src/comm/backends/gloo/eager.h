// Small operations: the payload travels in the frames themselves. Every rank whose tensor fits into
// a frame (kEagerBytesMax) takes these. Pure order of exchanges; lane thread.
//   all_reduce      recursive doubling; ranks beyond a power of two fold into a neighbour first
//   reduce          a binomial tree
//   broadcast       a binomial tree
//   reduce_scatter, all_gather, all_to_all   everyone to everyone
//   barrier         dissemination
// In recursive doubling both partners combine the same two values with the lower rank's first;
// elsewhere values are combined in one place, in a fixed order: the same bits in every run.
// Source: Thakur, Rabenseifner, Gropp: Optimization of collective communication operations in
// MPICH, Int. J. High Perform. Comput. Appl. 19 (2005).
#pragma once

#include "comm/backends/gloo/frame_exchange.h"

namespace perdure::eager {

MaybeTrouble AllReduce(FrameExchange& x, Course& course);
MaybeTrouble Reduce(FrameExchange& x, Course& course);
MaybeTrouble ReduceScatter(FrameExchange& x, Course& course);
MaybeTrouble Broadcast(FrameExchange& x, Course& course);
MaybeTrouble AllGather(FrameExchange& x, Course& course);
MaybeTrouble AllToAll(FrameExchange& x, Course& course);
MaybeTrouble Barrier(FrameExchange& x, Course& course);
MaybeTrouble Send(FrameExchange& x, Course& course);
MaybeTrouble Recv(FrameExchange& x, Course& course);

}  // namespace perdure::eager
