#include "wire/control_service.h"

#include <grpcpp/resource_quota.h>

#include <algorithm>

#include "wire/convert.h"
#include "wire/grpc_status.h"

namespace perdure::wire {
namespace {

// Threads for calls of the command line; more callers wait.
constexpr int kControlThreadsMax = 64;
// A followed stream looks this often whether its reader is still there.
constexpr Duration kFollowSlice = std::chrono::milliseconds(250);

}  // namespace

void ControlService::Prepare(grpc::ServerBuilder& builder) {
  grpc::ResourceQuota quota("perdure-control");
  quota.SetMaxThreads(kControlThreadsMax);
  builder.SetResourceQuota(quota);
  builder.RegisterService(this);
}

Status ControlService::Admit(const grpc::ServerContext& context) const {
  if (closing_) return Status(Code::kUnavailable, "the supervisor leaves");
  if (control_ == nullptr) return Status(Code::kUnimplemented, "nobody answers questions here");
  if (token_.empty()) return Ok();
  const auto [first, last] = context.client_metadata().equal_range("perdure-token");
  const bool right = std::any_of(first, last, [this](const auto& entry) {
    return std::string(entry.second.data(), entry.second.size()) == token_;
  });
  if (right) return Ok();
  return Status(Code::kFailedPrecondition,
                "the token is not this job's: read it from supervisor.json in its state directory");
}

grpc::Status ControlService::GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest*,
                                       v1::GetStatusResponse* response) {
  if (const Status admitted = Admit(*context); !admitted.ok()) return ToGrpc(admitted);
  Result<std::string> json = control_->StatusJson();
  if (!json.ok()) return ToGrpc(json.status());
  response->set_json(*std::move(json));
  return grpc::Status::OK;
}

grpc::Status ControlService::FollowEvents(grpc::ServerContext* context,
                                          const v1::FollowEventsRequest* request,
                                          grpc::ServerWriter<v1::EventLine>* writer) {
  if (const Status admitted = Admit(*context); !admitted.ok()) return ToGrpc(admitted);
  std::int64_t next = request->first();
  bool reader_left = false;
  const auto send = [&](const std::string& json) {
    v1::EventLine line;
    line.set_json(json);
    reader_left = !writer->Write(line);
    if (!reader_left) ++next;
    return !reader_left;
  };
  for (;;) {
    const Status status =
        control_->Events(next, request->follow(), Deadline::After(kFollowSlice), send);
    if (reader_left || context->IsCancelled()) return grpc::Status::CANCELLED;
    if (!status.ok() && status.code() != Code::kDeadlineExceeded) return ToGrpc(status);
    // Without follow everything there was is sent; with it OK means that the job has ended.
    if (status.ok() || closing_) return grpc::Status::OK;
  }
}

grpc::Status ControlService::Stop(grpc::ServerContext* context, const v1::StopRequest* request,
                                  v1::StopResponse*) {
  if (const Status admitted = Admit(*context); !admitted.ok()) return ToGrpc(admitted);
  return ToGrpc(control_->Stop(request->reason()));
}

grpc::Status ControlService::Chaos(grpc::ServerContext* context, const v1::ChaosRequest* request,
                                   v1::ChaosResponse*) {
  if (const Status admitted = Admit(*context); !admitted.ok()) return ToGrpc(admitted);
  const Result<ChaosRequest> chaos = FromProto(*request);
  if (!chaos.ok()) return ToGrpc(chaos.status());
  return ToGrpc(control_->Chaos(*chaos));
}

}  // namespace perdure::wire
