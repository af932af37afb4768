#include "wire/key_value_client.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <utility>

#include "base/backoff.h"
#include "base/mutex.h"
#include "base/posix.h"
#include "perdure/clock.h"
#include "perdure/v1/key_value.grpc.pb.h"
#include "wire/key_value_status.h"

namespace perdure {
namespace {

using std::chrono::milliseconds;

// How much longer than the store's own wait a get may take before the store counts as silent.
constexpr milliseconds kAnswerMargin{500};
// How long a store may refuse connections before it counts as gone: its process does not come back
// at the same address within a generation, so this only rides out a full accept queue.
constexpr milliseconds kRefusedFor{300};
constexpr milliseconds kRetryFirst{10};
constexpr milliseconds kRetryMost{100};

class GrpcKeyValue final : public KeyValue {
 public:
  GrpcKeyValue(const std::string& address, Generation generation)
      : address_(address), generation_(generation), client_id_(RandomHex(8)) {
    grpc::ChannelArguments arguments;
    // Otherwise gRPC waits up to two minutes between two tries to connect.
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 20);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
    // Two communicators of one process must not share a connection's fate.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::KeyValueStore::NewStub(channel_);
  }

  Status Set(std::string_view key, std::string_view value, Deadline deadline) override {
    v1::SetRequest request;
    request.set_generation(generation_.value());
    request.set_key(std::string(key));
    request.set_value(std::string(value));
    v1::SetResponse response;
    return Call("set", key, deadline, milliseconds(0), [&](grpc::ClientContext& context) {
      return stub_->Set(&context, request, &response);
    });
  }

  Result<std::string> Get(std::string_view key, Deadline deadline) override {
    v1::GetRequest request;
    request.set_generation(generation_.value());
    request.set_key(std::string(key));
    v1::GetResponse response;
    PERDURE_RETURN_IF_ERROR(
        Call("get", key, deadline, kAnswerMargin, [&](grpc::ClientContext& context) {
          request.set_wait_ms(static_cast<std::uint64_t>(
              std::chrono::ceil<milliseconds>(deadline.Remaining(RealClock().Now())).count()));
          return stub_->Get(&context, request, &response);
        }));
    return std::move(*response.mutable_value());
  }

  Result<std::int64_t> Add(std::string_view key, std::int64_t amount, Deadline deadline) override {
    v1::AddRequest request;
    request.set_generation(generation_.value());
    request.set_key(std::string(key));
    request.set_amount(amount);
    request.set_operation_id(fmt::format("{}-{}", client_id_, last_operation_.fetch_add(1)));
    v1::AddResponse response;
    PERDURE_RETURN_IF_ERROR(Call(
        "add", key, deadline, milliseconds(0),
        [&](grpc::ClientContext& context) { return stub_->Add(&context, request, &response); }));
    return response.sum();
  }

  Result<std::string> CompareAndSet(std::string_view key, std::string_view expected,
                                    std::string_view desired, Deadline deadline) override {
    v1::CompareAndSetRequest request;
    request.set_generation(generation_.value());
    request.set_key(std::string(key));
    request.set_expected(std::string(expected));
    request.set_desired(std::string(desired));
    v1::CompareAndSetResponse response;
    PERDURE_RETURN_IF_ERROR(
        Call("compare and set", key, deadline, milliseconds(0), [&](grpc::ClientContext& context) {
          return stub_->CompareAndSet(&context, request, &response);
        }));
    return std::move(*response.mutable_value());
  }

  Status Forget(std::string_view prefix, Deadline deadline) override {
    v1::ForgetRequest request;
    request.set_generation(generation_.value());
    request.set_prefix(std::string(prefix));
    v1::ForgetResponse response;
    return Call("forget", prefix, deadline, milliseconds(0), [&](grpc::ClientContext& context) {
      return stub_->Forget(&context, request, &response);
    });
  }

  void Close() override {
    MutexLock lock(mutex_);
    closed_ = true;
    for (grpc::ClientContext* context : calls_) context->TryCancel();
    closed_changed_.NotifyAll();
  }

 private:
  // Sends until it is answered, the store is known to be gone, or the deadline (plus `margin`, for
  // requests that the store itself keeps until the deadline) passes.
  Status Call(std::string_view verb, std::string_view key, Deadline deadline, milliseconds margin,
              const std::function<grpc::Status(grpc::ClientContext&)>& send) {
    Backoff backoff(kRetryFirst, kRetryMost, RandomU64());
    const Deadline give_up(deadline.at() + margin);
    const MonotonicTime begin = RealClock().Now();
    for (;;) {
      const Duration remaining = give_up.Remaining(RealClock().Now());
      grpc::ClientContext context;
      context.set_deadline(RealClock().WallNow() + remaining);
      if (!Begin(&context)) return Closed();
      const grpc::Status status = send(context);
      if (!End(&context) && !status.ok()) return Closed();
      if (status.ok()) return Ok();
      // An answer of the store carries its own words; gRPC's own failures are UNAVAILABLE, or
      // DEADLINE_EXCEEDED when our deadline has passed.
      const MonotonicTime now = RealClock().Now();
      const bool ours = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
                        give_up.Passed(now + milliseconds(1));
      if (status.error_code() != grpc::StatusCode::UNAVAILABLE && !ours &&
          status.error_code() != grpc::StatusCode::CANCELLED) {
        return FromGrpcAnswer(status);
      }
      const bool gone =
          status.error_code() == grpc::StatusCode::UNAVAILABLE && now - begin > kRefusedFor;
      const Duration pause = backoff.Next();
      if (ours || gone || deadline.Passed(now + pause)) {
        return Status(Code::kUnavailable,
                      fmt::format("the control store at {} (rank 0) is unreachable: {} {}: {}",
                                  address_, verb, key, status.error_message()));
      }
      if (!PauseUntil(Deadline(now + pause))) return Closed();
    }
  }

  static Status Closed() {
    return Status(Code::kAborted, "the connection to the control store was closed");
  }

  // Each of the three: false once Close was called.
  bool Begin(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    if (!closed_) calls_.insert(context);
    return !closed_;
  }
  bool End(grpc::ClientContext* context) {
    MutexLock lock(mutex_);
    calls_.erase(context);
    return !closed_;
  }
  bool PauseUntil(Deadline deadline) {
    MutexLock lock(mutex_);
    while (!closed_ && closed_changed_.WaitUntil(mutex_, deadline)) {
    }
    return !closed_;
  }

  const std::string address_;
  const Generation generation_;
  const std::string client_id_;
  std::atomic<std::uint64_t> last_operation_{1};
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::KeyValueStore::Stub> stub_;

  Mutex mutex_;
  CondVar closed_changed_;
  bool closed_ PERDURE_GUARDED_BY(mutex_) = false;
  std::set<grpc::ClientContext*> calls_ PERDURE_GUARDED_BY(mutex_);  // in flight
};

}  // namespace

std::unique_ptr<KeyValue> ConnectKeyValue(const std::string& address, Generation generation) {
  return std::make_unique<GrpcKeyValue>(address, generation);
}

}  // namespace perdure
