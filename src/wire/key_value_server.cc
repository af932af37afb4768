// A get that must wait, step by step:
//  1 the reactor registers a callback with the store and sets an alarm for the wait it was asked
//  for; 2 whichever comes first answers: the value (the store calls back), the alarm (the key was
//  not set
//    in time), or the client going away (OnCancel). `answered_` lets exactly one of them through;
//  3 OnDone, after the answer left: the alarm is cancelled, the last reference goes.
#include "wire/key_value_server.h"

#include <fmt/format.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include "perdure/clock.h"
#include "perdure/v1/key_value.grpc.pb.h"
#include "wire/channel.h"
#include "wire/key_value_status.h"

namespace perdure {
namespace {

constexpr std::uint64_t kWaitMsMax = 24ull * 3600 * 1000;

class WaitingGet final : public grpc::ServerUnaryReactor,
                         public std::enable_shared_from_this<WaitingGet> {
 public:
  WaitingGet(StoreServer& store, v1::GetResponse* response) : store_(store), response_(response) {}

  void Start(const v1::GetRequest& request) {
    self_ = shared_from_this();  // until OnDone
    const std::uint64_t wait_ms = std::min<std::uint64_t>(request.wait_ms(), kWaitMsMax);
    const std::string& key = request.key();
    // The store may call back before Get returns; then the alarm finds `answered_` set.
    const StoreServer::WaiterId waiter =
        store_.Get(Generation(request.generation()), key,
                   [self = self_](Result<std::string> value) { self->Answer(std::move(value)); });
    if (waiter == 0) return;
    waiter_.store(waiter);
    // An alarm keeps its callback for as long as it lives: holding on to this here would be a
    // circle.
    alarm_.Set(RealClock().WallNow() + std::chrono::milliseconds(wait_ms),
               [weak = weak_from_this(), key](bool expired) {
                 const std::shared_ptr<WaitingGet> self = weak.lock();
                 if (expired && self != nullptr) self->TimeOut(key);
               });
  }

  // gRPC calls neither of these two before Start's caller has returned the reactor.
  void OnCancel() override { TimeOut(""); }

  void OnDone() override {
    alarm_.Cancel();
    self_.reset();
  }

 private:
  void TimeOut(const std::string& key) {
    const StoreServer::WaiterId waiter = waiter_.load();
    if (waiter == 0 || !store_.Cancel(waiter)) return;
    Answer(Status(Code::kDeadlineExceeded,
                  fmt::format("control store key {} was not set in time", key)));
  }

  void Answer(Result<std::string> value) {
    if (answered_.exchange(true)) return;
    const Status status = value.status();
    if (status.ok()) response_->set_value(*std::move(value));
    Finish(ToGrpcStatus(status));
  }

  StoreServer& store_;
  v1::GetResponse* const response_;
  std::atomic<StoreServer::WaiterId> waiter_{0};
  std::atomic<bool> answered_{false};
  grpc::Alarm alarm_;
  std::shared_ptr<WaitingGet> self_;
};

class Service final : public v1::KeyValueStore::CallbackService {
 public:
  explicit Service(StoreServer& store) : store_(store) {}

  grpc::ServerUnaryReactor* Set(grpc::CallbackServerContext* context, const v1::SetRequest* request,
                                v1::SetResponse* /*response*/) override {
    return Finished(
        context, store_.Set(Generation(request->generation()), request->key(), request->value()));
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* /*context*/,
                                const v1::GetRequest* request, v1::GetResponse* response) override {
    const auto get = std::make_shared<WaitingGet>(store_, response);
    get->Start(*request);
    return get.get();
  }

  grpc::ServerUnaryReactor* Add(grpc::CallbackServerContext* context, const v1::AddRequest* request,
                                v1::AddResponse* response) override {
    const Result<std::int64_t> sum = store_.Add(Generation(request->generation()), request->key(),
                                                request->amount(), request->operation_id());
    if (sum.ok()) response->set_sum(*sum);
    return Finished(context, sum.status());
  }

  grpc::ServerUnaryReactor* CompareAndSet(grpc::CallbackServerContext* context,
                                          const v1::CompareAndSetRequest* request,
                                          v1::CompareAndSetResponse* response) override {
    Result<std::string> value = store_.CompareAndSet(
        Generation(request->generation()), request->key(), request->expected(), request->desired());
    const Status status = value.status();
    if (status.ok()) response->set_value(*std::move(value));
    return Finished(context, status);
  }

  grpc::ServerUnaryReactor* Forget(grpc::CallbackServerContext* context,
                                   const v1::ForgetRequest* request,
                                   v1::ForgetResponse* /*response*/) override {
    return Finished(context, store_.Forget(Generation(request->generation()), request->prefix()));
  }

 private:
  static grpc::ServerUnaryReactor* Finished(grpc::CallbackServerContext* context,
                                            const Status& status) {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  StoreServer& store_;
};

class GrpcKeyValueServer final : public KeyValueServer {
 public:
  explicit GrpcKeyValueServer(StoreServer& store) : store_(store), service_(store) {}
  ~GrpcKeyValueServer() override { Stop(Deadline::After(std::chrono::seconds(1))); }

  Status Listen(const std::string& host, int port) {
    grpc::ServerBuilder builder;
    int bound_port = 0;
    PERDURE_RETURN_IF_ERROR(wire::Listen(builder, fmt::format("{}:{}", host, port), &bound_port));
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || bound_port == 0) {
      return Status(Code::kUnavailable,
                    fmt::format("the control store cannot listen on {}:{}; is the address this "
                                "machine's, and is the port free?",
                                host, port));
    }
    address_ = fmt::format("{}:{}", host, bound_port);
    return Ok();
  }

  const std::string& address() const override { return address_; }

  void Stop(Deadline deadline) override {
    store_.Close();
    if (server_ == nullptr) return;
    server_->Shutdown(RealClock().WallNow() + deadline.Remaining(RealClock().Now()));
    server_.reset();
  }

 private:
  StoreServer& store_;
  Service service_;
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<KeyValueServer>> KeyValueServer::Start(StoreServer& store,
                                                              const std::string& host, int port) {
  auto server = std::make_unique<GrpcKeyValueServer>(store);
  PERDURE_RETURN_IF_ERROR(server->Listen(host, port));
  return std::unique_ptr<KeyValueServer>(std::move(server));
}

}  // namespace perdure
