#include "wire/rank_port.h"

#include <fmt/format.h>
#include <grpcpp/server.h>

#include <utility>

#include "base/log.h"
#include "base/posix.h"
#include "perdure/clock.h"
#include "perdure/v1/rank.grpc.pb.h"
#include "wire/channel.h"
#include "wire/convert.h"
#include "wire/stream_hub.h"

namespace perdure::wire {

class GrpcRankPort::Impl : public v1::RankService::CallbackService {
 public:
  using Key = std::pair<Generation, Rank>;
  using Hub = StreamHub<Key, v1::RankToAgent, v1::AgentToRank>;

  grpc::ServerBidiReactor<v1::RankToAgent, v1::AgentToRank>* Connect(
      grpc::CallbackServerContext* context) override {
    return hub.Accept(context);
  }

  const std::string address = fmt::format("unix-abstract:perdure-{}", RandomHex(16));
  Handler handler;
  Hub hub;
  std::unique_ptr<grpc::Server> server;
};

GrpcRankPort::GrpcRankPort() : impl_(std::make_unique<Impl>()) {}

GrpcRankPort::~GrpcRankPort() {
  Close(Deadline::After(Duration::zero()));
}

const std::string& GrpcRankPort::address() const {
  return impl_->address;
}

Status GrpcRankPort::Open(Handler handler) {
  Impl& impl = *impl_;
  impl.handler = std::move(handler);
  Impl::Hub::Handler hub;
  hub.key_of = [](const v1::RankToAgent& first) -> Result<Impl::Key> {
    if (!first.has_hello()) {
      return Status(Code::kInvalidArgument, "the first message of a rank must be its hello");
    }
    return Impl::Key(first.hello().generation(), first.hello().rank());
  };
  hub.on_hello = [&impl](const v1::RankToAgent& first) -> Result<v1::AgentToRank> {
    PERDURE_ASSIGN_OR_RETURN(const RankWelcome welcome,
                             impl.handler.on_hello(FromProto(first.hello())));
    return ToProto(welcome);
  };
  hub.on_message = [&impl](const Impl::Key& key, const v1::RankToAgent& envelope) {
    const Result<RankMessage> message = FromProto(envelope);
    if (message.ok()) {
      impl.handler.on_message(key.first, key.second, *message);
    } else {
      Log().warn("rank {} of generation {}: {}", key.second.value(), key.first.value(),
                 message.status().message());
    }
  };
  hub.on_disconnected = [&impl](const Impl::Key& key) {
    impl.handler.on_disconnected(key.first, key.second);
  };
  impl.hub.Open(std::move(hub));

  grpc::ServerBuilder builder;
  int chosen = 0;
  PERDURE_RETURN_IF_ERROR(Listen(builder, impl.address, &chosen));
  builder.RegisterService(&impl);
  impl.server = builder.BuildAndStart();
  if (impl.server == nullptr) {
    return Status(Code::kUnavailable,
                  fmt::format("cannot listen for ranks on the socket {}", impl.address));
  }
  return Ok();
}

bool GrpcRankPort::Send(Generation generation, Rank rank, const RankCommand& command) {
  return impl_->hub.Send({generation, rank}, ToProto(command));
}

void GrpcRankPort::Close(Deadline deadline) {
  Impl& impl = *impl_;
  if (impl.server == nullptr) return;
  impl.hub.Close(Status(Code::kUnavailable, "the agent leaves"), deadline);
  impl.server->Shutdown(RealClock().WallNow());
  impl.hub.WaitUntilEmpty();
  impl.server.reset();
}

// ---------------------------------------------------------------- the rank's end

class GrpcSupervisorLink::Impl {
 public:
  using Stream = ClientStream<v1::AgentToRank, v1::RankToAgent>;

  explicit Impl(std::string address_in) : address(std::move(address_in)) {}

  void OnMessage(const v1::AgentToRank& envelope) PERDURE_EXCLUDES(mutex) {
    if (envelope.has_welcome()) {
      MutexLock lock(mutex);
      if (!welcome.has_value()) welcome = FromProto(envelope.welcome());
      changed.NotifyAll();
      return;
    }
    const Result<RankCommand> command = FromProto(envelope);
    if (command.ok()) {
      on_command(*command);
    } else {
      Log().warn("from the agent: {}", command.status().message());
    }
  }

  void OnDone(const grpc::Status& status) PERDURE_EXCLUDES(mutex) {
    bool lost = false;
    {
      MutexLock lock(mutex);
      lost = opened && !closing;
    }
    if (lost) on_lost();
    MutexLock lock(mutex);
    done = status;
    changed.NotifyAll();
  }

  const std::string address;
  std::function<void(const RankCommand&)> on_command;  // constant once the call has started
  std::function<void()> on_lost;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::RankService::Stub> stub;
  std::shared_ptr<Stream> stream;

  Mutex mutex;
  CondVar changed;
  std::optional<RankWelcome> welcome PERDURE_GUARDED_BY(mutex);
  std::optional<grpc::Status> done PERDURE_GUARDED_BY(mutex);
  bool opened PERDURE_GUARDED_BY(mutex) = false;
  bool closing PERDURE_GUARDED_BY(mutex) = false;
};

GrpcSupervisorLink::GrpcSupervisorLink(std::string address)
    : impl_(std::make_unique<Impl>(std::move(address))) {}

GrpcSupervisorLink::~GrpcSupervisorLink() {
  Close(Deadline::After(Duration::zero()));
}

Result<RankWelcome> GrpcSupervisorLink::Open(const RankHello& hello,
                                             std::function<void(const RankCommand&)> on_command,
                                             std::function<void()> on_lost, Deadline deadline) {
  Impl& impl = *impl_;
  if (impl.stream != nullptr)
    return Status(Code::kFailedPrecondition, "the link was opened before");
  PERDURE_ASSIGN_OR_RETURN(impl.channel, MakeChannel(impl.address));
  impl.on_command = std::move(on_command);
  impl.on_lost = std::move(on_lost);
  impl.stub = v1::RankService::NewStub(impl.channel);
  impl.stream = Impl::Stream::Make();
  impl.stub->async()->Connect(&impl.stream->context(), impl.stream.get());
  impl.stream->Start(impl.stream, {[&impl](v1::AgentToRank message) { impl.OnMessage(message); },
                                   [&impl](const grpc::Status& status) { impl.OnDone(status); }});
  PERDURE_RETURN_IF_ERROR(impl.stream->Send(ToProto(hello), Slot::kOrdered));

  MutexLock lock(impl.mutex);
  while (!impl.welcome.has_value() && !impl.done.has_value()) {
    if (!impl.changed.WaitUntil(impl.mutex, deadline) && !impl.welcome.has_value() &&
        !impl.done.has_value()) {
      return Status(Code::kDeadlineExceeded,
                    fmt::format("the agent at {} did not answer the hello in time", impl.address));
    }
  }
  if (!impl.welcome.has_value()) {
    return FromGrpc(*impl.done).WithContext(fmt::format("joining the agent at {}", impl.address));
  }
  impl.opened = true;
  return *impl.welcome;
}

Status GrpcSupervisorLink::Send(const RankMessage& message) {
  if (impl_->stream == nullptr) {
    return Status(Code::kFailedPrecondition, "the link is not open");
  }
  const Slot slot = std::holds_alternative<RankReport>(message) ? Slot::kLatest : Slot::kOrdered;
  return impl_->stream->Send(ToProto(message), slot);
}

void GrpcSupervisorLink::Close(Deadline deadline) {
  Impl& impl = *impl_;
  if (impl.stream == nullptr) return;
  {
    MutexLock lock(impl.mutex);
    impl.closing = true;
  }
  impl.stream->CloseWhenSent(grpc::Status::OK);
  MutexLock lock(impl.mutex);
  while (!impl.done.has_value() && impl.changed.WaitUntil(impl.mutex, deadline)) {
  }
  if (impl.done.has_value()) return;
  impl.stream->Cancel();
  // gRPC ends a cancelled call at once, whatever the other side does.
  while (!impl.done.has_value()) impl.changed.Wait(impl.mutex);
}

}  // namespace perdure::wire
