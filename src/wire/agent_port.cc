#include "wire/agent_port.h"

#include <fmt/format.h>
#include <grpcpp/server.h>

#include <utility>

#include "base/log.h"
#include "perdure/clock.h"
#include "perdure/v1/agent.grpc.pb.h"
#include "wire/channel.h"
#include "wire/control_service.h"
#include "wire/convert.h"
#include "wire/stream_hub.h"

namespace perdure::wire {

class GrpcAgentPort::Impl : public v1::AgentService::CallbackService {
 public:
  using Hub = StreamHub<std::string, v1::AgentToSupervisor, v1::SupervisorToAgent>;

  explicit Impl(Options options_in)
      : options(std::move(options_in)), control_service(options.token) {}

  grpc::ServerBidiReactor<v1::AgentToSupervisor, v1::SupervisorToAgent>* Connect(
      grpc::CallbackServerContext* context) override {
    return hub.Accept(context);
  }

  const Options options;
  Handler handler;
  Hub hub;
  ControlService control_service;
  std::unique_ptr<grpc::Server> server;
};

GrpcAgentPort::GrpcAgentPort(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}

GrpcAgentPort::~GrpcAgentPort() {
  Close(Deadline::After(Duration::zero()));
}

void GrpcAgentPort::ServeControl(JobControl& control) {
  impl_->control_service.Serve(control);
}

Status GrpcAgentPort::Open(Handler handler) {
  Impl& impl = *impl_;
  impl.handler = std::move(handler);
  Impl::Hub::Handler hub;
  hub.key_of = [&impl](const v1::AgentToSupervisor& first) -> Result<std::string> {
    if (!first.has_hello() || first.hello().node().empty()) {
      return Status(Code::kInvalidArgument,
                    "the first message of an agent must be its hello, with the node's name");
    }
    if (!impl.options.token.empty() && first.hello().token() != impl.options.token) {
      return Status(Code::kFailedPrecondition,
                    fmt::format("the agent of node {} shows a token that is not this job's",
                                first.hello().node()));
    }
    return first.hello().node();
  };
  hub.on_hello = [&impl](const v1::AgentToSupervisor& first) -> Result<v1::SupervisorToAgent> {
    PERDURE_ASSIGN_OR_RETURN(const SupervisorHello answer,
                             impl.handler.on_hello(FromProto(first.hello())));
    return ToProto(answer);
  };
  hub.on_message = [&impl](const std::string& node, const v1::AgentToSupervisor& envelope) {
    const Result<AgentMessage> message = FromProto(envelope);
    if (message.ok()) {
      impl.handler.on_message(node, *message);
    } else {
      Log().warn("agent of node {}: {}", node, message.status().message());
    }
  };
  hub.on_disconnected = [&impl](const std::string& node) { impl.handler.on_disconnected(node); };
  impl.hub.Open(std::move(hub));

  grpc::ServerBuilder builder;
  int port = 0;
  PERDURE_RETURN_IF_ERROR(Listen(builder, impl.options.listen, &port));
  impl.control_service.Prepare(builder);
  builder.RegisterService(&impl);
  impl.server = builder.BuildAndStart();
  if (impl.server == nullptr || port == 0) {
    impl.server.reset();
    return Status(
        Code::kUnavailable,
        fmt::format("cannot listen on {}: is the port taken? Port 0 lets the system choose",
                    impl.options.listen));
  }
  const std::string host = impl.options.listen.substr(0, impl.options.listen.rfind(':'));
  if (!impl.options.on_listening) return Ok();
  return impl.options.on_listening(fmt::format("{}:{}", host, port));
}

bool GrpcAgentPort::Send(const std::string& node, const SupervisorCommand& command) {
  return impl_->hub.Send(node, ToProto(command));
}

void GrpcAgentPort::Close(Deadline deadline) {
  Impl& impl = *impl_;
  if (impl.server == nullptr) return;
  impl.control_service.Close();
  impl.hub.Close(Status(Code::kUnavailable, "the supervisor leaves"), deadline);
  impl.server->Shutdown(RealClock().WallNow());
  impl.hub.WaitUntilEmpty();
  impl.server.reset();
}

}  // namespace perdure::wire
