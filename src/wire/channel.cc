#include "wire/channel.h"

#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server.h>

#include <string_view>

#include "base/check.h"
#include "perdure/v1/key_value.grpc.pb.h"

namespace perdure::wire {
namespace {

// A peer that does not answer a ping for kPingTimeoutMs after kPingIntervalMs of silence is gone.
// The server must permit what the client does, or it answers with "too many pings".
constexpr int kPingIntervalMs = 5000;
constexpr int kPingTimeoutMs = 5000;
constexpr int kPingIntervalPermittedMs = 2500;

// Never called: a service with a callback method is what makes a server hold gRPC's threads.
class Nothing final : public v1::KeyValueStore::CallbackService {};

bool StartsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool IsUnixSocket(std::string_view address) {
  return StartsWith(address, "unix:") || StartsWith(address, "unix-abstract:");
}

// gRPC's threads for callbacks end with the last channel and server of the process, and are joined
// by whoever lets go of it. When that is a callback, a thread joins itself, and libgrpc 1.51 aborts
// the process (grpc/grpc pull request 32584). So one server, which listens nowhere, is made before
// any channel or other server that has callbacks, and never destroyed.
void KeepCallbackThreads() {
  static grpc::Server* const holder = [] {
    grpc::ServerBuilder builder;
    builder.RegisterService(new Nothing);
    return builder.BuildAndStart().release();
  }();
  PERDURE_CHECK(holder != nullptr, "a gRPC server without a port cannot start");
}

}  // namespace

Status CheckLocalAddress(const std::string& address) {
  if (IsUnixSocket(address)) return Ok();
  const std::size_t colon = address.rfind(':');
  if (colon == std::string::npos) {
    return Status(Code::kInvalidArgument,
                  fmt::format("address \"{}\" has no port: write HOST:PORT", address));
  }
  const std::string_view host = std::string_view(address).substr(0, colon);
  bool loopback = host == "localhost" || host == "[::1]";
  if (StartsWith(host, "127.")) {
    loopback = host.find_first_not_of("0123456789.") == std::string_view::npos;
  }
  if (loopback) return Ok();
  return Status(Code::kInvalidArgument,
                fmt::format("address \"{}\" is not loopback, and TLS is not there yet: use "
                            "127.0.0.1:PORT, [::1]:PORT or a unix socket",
                            address));
}

Result<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address) {
  PERDURE_RETURN_IF_ERROR(CheckLocalAddress(address));
  KeepCallbackThreads();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  // On a unix socket the kernel says when the peer is gone, and a peer that is merely stopped must
  // keep its stream.
  if (!IsUnixSocket(address)) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingIntervalMs);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

Status Listen(grpc::ServerBuilder& builder, const std::string& address, int* port) {
  PERDURE_RETURN_IF_ERROR(CheckLocalAddress(address));
  KeepCallbackThreads();
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), port);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(kMessageBytesMax);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  if (!IsUnixSocket(address)) {
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kPingIntervalMs);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingTimeoutMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               kPingIntervalPermittedMs);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  return Ok();
}

}  // namespace perdure::wire
