// The supervisor's answers to the command line, as a gRPC service. One thread per call: calls are
// few, and a followed event stream waits.
#pragma once

#include <grpcpp/server_builder.h>

#include <atomic>
#include <string>

#include "control/job_control.h"
#include "perdure/v1/supervisor.grpc.pb.h"

namespace perdure::wire {

class ControlService : public v1::ControlService::Service {
 public:
  explicit ControlService(std::string token) : token_(std::move(token)) {}

  // Before the server starts.
  void Serve(JobControl& control) { control_ = &control; }
  void Prepare(grpc::ServerBuilder& builder);
  // Streams end soon, and new calls are refused.
  void Close() { closing_ = true; }

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                         v1::GetStatusResponse* response) override;
  grpc::Status FollowEvents(grpc::ServerContext* context, const v1::FollowEventsRequest* request,
                            grpc::ServerWriter<v1::EventLine>* writer) override;
  grpc::Status Stop(grpc::ServerContext* context, const v1::StopRequest* request,
                    v1::StopResponse* response) override;
  grpc::Status Chaos(grpc::ServerContext* context, const v1::ChaosRequest* request,
                     v1::ChaosResponse* response) override;

 private:
  Status Admit(const grpc::ServerContext& context) const;

  const std::string token_;
  JobControl* control_ = nullptr;  // constant once the server has started
  std::atomic<bool> closing_{false};
};

}  // namespace perdure::wire
