// Where we listen and dial. Until TLS is here, only where no other machine can listen in: loopback
// addresses and unix sockets.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server_builder.h>

#include <memory>
#include <string>

#include "perdure/status.h"

namespace perdure::wire {

// Larger messages are refused by the receiver: evidence and status texts stay under it.
inline constexpr int kMessageBytesMax = 16 << 20;

// OK for "127.x.y.z:port", "localhost:port", "[::1]:port", "unix:path" and "unix-abstract:name".
Status CheckLocalAddress(const std::string& address);

// A channel of its own (no shared connection or backoff), with keepalive on TCP. Does not connect
// yet.
Result<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address);

// Listens on `address`; the chosen port arrives in `port` when the server starts. Never shares the
// port with another process.
Status Listen(grpc::ServerBuilder& builder, const std::string& address, int* port);

}  // namespace perdure::wire
