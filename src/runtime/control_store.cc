#include "runtime/control_store.h"

#include <fmt/format.h>

#include <utility>

#include "base/thread.h"
#include "control/memory_key_value.h"
#include "wire/key_value_client.h"

namespace perdure {
namespace {

constexpr Duration kStopMax = std::chrono::seconds(1);
constexpr Duration kKnockEvery = std::chrono::milliseconds(100);

// A launcher starts all ranks at once: rank 0 may open its store later than we come.
// A connection of its own for each try, because gRPC backs off on one that was refused.
Status WaitUntilOpen(const std::string& address, Generation fence, Deadline deadline) {
  for (;;) {
    const std::unique_ptr<KeyValue> store = ConnectKeyValue(address, fence);
    const Status knock = store->Add("/knocks", 1, deadline).status();
    if (knock.code() != Code::kUnavailable || deadline.Passed(RealClock().Now())) return knock;
    SleepFor(kKnockEvery);
  }
}

}  // namespace

Result<std::unique_ptr<ControlStore>> ControlStore::Open(const Environment& environment,
                                                         SupervisorLink& link, Orders& orders,
                                                         Deadline deadline) {
  const bool supervised = environment.start == Environment::Start::kSupervised;
  const Generation fence =
      supervised ? environment.generation : Generation(environment.restart_count);
  std::unique_ptr<ControlStore> control(new ControlStore(fence));

  if (environment.rank == Rank(0)) {
    control->store_ = std::make_unique<StoreServer>(fence);
    if (environment.world_size == 1) return control;
    const bool launched = environment.start == Environment::Start::kLaunched;
    PERDURE_ASSIGN_OR_RETURN(
        control->server_,
        KeyValueServer::Start(*control->store_, launched ? environment.store_host : "127.0.0.1",
                              launched ? environment.store_port : 0));
    control->address_ = control->server_->address();
    PERDURE_RETURN_IF_ERROR(link.Send(StoreReady{control->address_}));
    return control;
  }

  if (supervised) {
    PERDURE_ASSIGN_OR_RETURN(control->address_, orders.WaitForStoreAddress(deadline));
  } else {
    control->address_ = fmt::format("{}:{}", environment.store_host, environment.store_port);
    PERDURE_RETURN_IF_ERROR(WaitUntilOpen(control->address_, fence, deadline));
  }
  return control;
}

std::unique_ptr<KeyValue> ControlStore::Connect() {
  if (store_ != nullptr) return std::make_unique<MemoryKeyValue>(*store_, fence_);
  return ConnectKeyValue(address_, fence_);
}

ControlStore::~ControlStore() {
  if (server_ != nullptr) server_->Stop(Deadline::After(kStopMax));
}

}  // namespace perdure
