#include "wire/control_client.h"

#include <chrono>
#include <utility>

#include "perdure/clock.h"
#include "perdure/v1/supervisor.grpc.pb.h"
#include "wire/channel.h"
#include "wire/convert.h"
#include "wire/grpc_status.h"

namespace perdure::wire {

class GrpcJobControl::Impl {
 public:
  Impl(std::string address_in, std::string token_in, Duration patience_in)
      : token(std::move(token_in)), patience(patience_in) {
    Result<std::shared_ptr<grpc::Channel>> made = MakeChannel(address_in);
    if (made.ok()) {
      stub = v1::ControlService::NewStub(*made);
    } else {
      unusable = made.status();
    }
  }

  void Prepare(grpc::ClientContext& context, Duration budget) const {
    context.AddMetadata("perdure-token", token);
    context.set_deadline(RealClock().WallNow() +
                         std::chrono::duration_cast<std::chrono::milliseconds>(budget));
  }

  const std::string token;
  const Duration patience;
  Status unusable;
  std::unique_ptr<v1::ControlService::Stub> stub;
};

GrpcJobControl::GrpcJobControl(std::string address, std::string token, Duration patience)
    : impl_(std::make_unique<Impl>(std::move(address), std::move(token), patience)) {}

GrpcJobControl::~GrpcJobControl() = default;

Result<std::string> GrpcJobControl::StatusJson() {
  PERDURE_RETURN_IF_ERROR(impl_->unusable);
  grpc::ClientContext context;
  impl_->Prepare(context, impl_->patience);
  v1::GetStatusResponse response;
  PERDURE_RETURN_IF_ERROR(FromGrpc(impl_->stub->GetStatus(&context, {}, &response)));
  return response.json();
}

Status GrpcJobControl::Events(std::int64_t first, bool follow, Deadline deadline,
                              const std::function<bool(const std::string& json)>& on_event) {
  PERDURE_RETURN_IF_ERROR(impl_->unusable);
  grpc::ClientContext context;
  impl_->Prepare(context, deadline.Remaining(RealClock().Now()));
  v1::FollowEventsRequest request;
  request.set_first(first);
  request.set_follow(follow);
  const auto reader = impl_->stub->FollowEvents(&context, request);
  v1::EventLine line;
  bool enough = false;
  while (!enough && reader->Read(&line)) enough = !on_event(line.json());
  if (enough) context.TryCancel();
  const Status status = FromGrpc(reader->Finish());
  return enough ? Ok() : status;
}

Status GrpcJobControl::Stop(const std::string& reason) {
  PERDURE_RETURN_IF_ERROR(impl_->unusable);
  grpc::ClientContext context;
  impl_->Prepare(context, impl_->patience);
  v1::StopRequest request;
  request.set_reason(reason);
  v1::StopResponse response;
  return FromGrpc(impl_->stub->Stop(&context, request, &response));
}

Status GrpcJobControl::Chaos(const ChaosRequest& request) {
  PERDURE_RETURN_IF_ERROR(impl_->unusable);
  grpc::ClientContext context;
  impl_->Prepare(context, impl_->patience);
  v1::ChaosResponse response;
  return FromGrpc(impl_->stub->Chaos(&context, ToProto(request), &response));
}

}  // namespace perdure::wire
