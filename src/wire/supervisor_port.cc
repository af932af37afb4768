// The agent's end of its stream to the supervisor:
//  1. ask for the address, dial, say hello; the hello is made anew for each dial;
//  2. wait for the answer, at most kAnswerPatience;
//  3. an answer that says this agent is not wanted ends the port (on_refused); anything else that
//     goes wrong leads back to 1 after a backoff;
//  4. connected: hand on commands until the stream ends, then on_disconnected and back to 1.
#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "base/backoff.h"
#include "base/log.h"
#include "base/posix.h"
#include "base/thread.h"
#include "perdure/v1/agent.grpc.pb.h"
#include "wire/agent_port.h"
#include "wire/channel.h"
#include "wire/convert.h"
#include "wire/duplex.h"

namespace perdure::wire {
namespace {

constexpr Duration kAnswerPatience = std::chrono::seconds(10);
constexpr Duration kRedialFirst = std::chrono::milliseconds(100);
constexpr Duration kRedialMost = std::chrono::seconds(2);

// The supervisor knows this agent and does not want it; saying it again changes nothing.
bool IsRefusal(const grpc::Status& status) {
  if (status.ok() || !IsAnswer(status)) return false;
  switch (FromGrpc(status).code()) {
    case Code::kUnavailable:
    case Code::kDeadlineExceeded:
    case Code::kResourceExhausted:
    case Code::kAborted:
      return false;
    default:
      return true;
  }
}

}  // namespace

class GrpcSupervisorPort::Impl {
 public:
  using Stream = ClientStream<v1::SupervisorToAgent, v1::AgentToSupervisor>;

  explicit Impl(std::function<Result<std::string>()> address_in)
      : address_(std::move(address_in)), backoff_(kRedialFirst, kRedialMost, RandomU64()) {}

  void Open(Handler handler) {
    handler_ = std::move(handler);
    thread_ = Thread("dial-supervisor", [this] { Loop(); });
  }

  bool Send(const AgentMessage& message) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(mutex_);
      if (!connected_) return false;
      stream = stream_;
    }
    const Slot slot = std::holds_alternative<NodeReport>(message) ? Slot::kLatest : Slot::kOrdered;
    return stream->Send(ToProto(message), slot).ok();
  }

  void Close(Deadline deadline) {
    std::shared_ptr<Stream> stream;
    {
      MutexLock lock(mutex_);
      closing_ = true;
      stream = stream_;
      changed_.NotifyAll();
    }
    if (stream != nullptr) {
      stream->CloseWhenSent(grpc::Status::OK);
      MutexLock lock(mutex_);
      while (stream_ != nullptr && !ended_ && changed_.WaitUntil(mutex_, deadline)) {
      }
      if (!ended_) stream->Cancel();
    }
    thread_.Join();
  }

 private:
  void Loop() {
    std::string last_trouble;
    while (!Closing()) {
      const Status trouble = DialOnce();
      if (refused_) return;
      if (trouble.message() != last_trouble) {
        last_trouble = trouble.message();
        if (!Closing()) Log().info("no connection to the supervisor: {}", last_trouble);
      }
      MutexLock lock(mutex_);
      const Deadline next = Deadline::After(backoff_.Next());
      while (!closing_ && changed_.WaitUntil(mutex_, next)) {
      }
    }
  }

  // Returns when the stream has ended, with why.
  Status DialOnce() {
    PERDURE_ASSIGN_OR_RETURN(const std::string address, address_());
    PERDURE_ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, MakeChannel(address));
    const auto stub = v1::AgentService::NewStub(channel);
    std::shared_ptr<Stream> stream = Stream::Make();
    stub->async()->Connect(&stream->context(), stream.get());
    {
      MutexLock lock(mutex_);
      if (closing_) stream->Cancel();
      stream_ = stream;
      ended_ = false;
    }
    stream->Start(stream, {[this](v1::SupervisorToAgent message) { OnMessage(message); },
                           [this](const grpc::Status& status) { OnDone(status); }});
    // A stream that is already broken says so through OnDone.
    (void)stream->Send(ToProto(handler_.hello()), Slot::kOrdered);
    return WaitForEnd(stream, address);
  }

  Status WaitForEnd(const std::shared_ptr<Stream>& stream, const std::string& address) {
    const Deadline answer_by = Deadline::After(kAnswerPatience);
    bool was_connected = false;
    grpc::Status status;
    {
      MutexLock lock(mutex_);
      while (!ended_ && !connected_) {
        if (!changed_.WaitUntil(mutex_, answer_by) && !ended_ && !connected_) {
          stream->Cancel();
          break;
        }
      }
      while (!ended_) changed_.Wait(mutex_);
      was_connected = connected_;
      connected_ = false;
      status = end_status_;
      stream_.reset();
    }
    if (was_connected) {
      backoff_.Reset();
      handler_.on_disconnected();
    } else if (IsRefusal(status) && !Closing()) {
      refused_ = true;
      handler_.on_refused(FromGrpc(status));
    }
    return Status(Code::kUnavailable,
                  fmt::format("{}: {}", address,
                              status.ok() ? "the stream has ended" : status.error_message()));
  }

  void OnMessage(const v1::SupervisorToAgent& envelope) {
    if (envelope.has_hello()) {
      {
        MutexLock lock(mutex_);
        connected_ = true;
        changed_.NotifyAll();
      }
      handler_.on_connected(FromProto(envelope.hello()));
      return;
    }
    const Result<SupervisorCommand> command = FromProto(envelope);
    if (command.ok()) {
      handler_.on_command(*command);
    } else {
      Log().warn("from the supervisor: {}", command.status().message());
    }
  }

  void OnDone(const grpc::Status& status) {
    MutexLock lock(mutex_);
    ended_ = true;
    end_status_ = status;
    changed_.NotifyAll();
  }

  bool Closing() {
    MutexLock lock(mutex_);
    return closing_;
  }

  const std::function<Result<std::string>()> address_;
  Handler handler_;  // constant after Open

  // Only on the dialling thread.
  Backoff backoff_;
  bool refused_ = false;

  Mutex mutex_;
  CondVar changed_;
  std::shared_ptr<Stream> stream_ PERDURE_GUARDED_BY(mutex_);
  bool connected_ PERDURE_GUARDED_BY(mutex_) = false;
  bool ended_ PERDURE_GUARDED_BY(mutex_) = true;
  bool closing_ PERDURE_GUARDED_BY(mutex_) = false;
  grpc::Status end_status_ PERDURE_GUARDED_BY(mutex_);

  Thread thread_;  // last: it uses everything above
};

GrpcSupervisorPort::GrpcSupervisorPort(std::function<Result<std::string>()> address)
    : impl_(std::make_unique<Impl>(std::move(address))) {}

GrpcSupervisorPort::~GrpcSupervisorPort() {
  impl_->Close(Deadline::After(Duration::zero()));
}

Status GrpcSupervisorPort::Open(Handler handler) {
  impl_->Open(std::move(handler));
  return Ok();
}

bool GrpcSupervisorPort::Send(const AgentMessage& message) {
  return impl_->Send(message);
}

void GrpcSupervisorPort::Close(Deadline deadline) {
  impl_->Close(deadline);
}

}  // namespace perdure::wire
