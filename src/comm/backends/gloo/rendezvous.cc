#include "comm/backends/gloo/rendezvous.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>

namespace perdure {
namespace {

using nlohmann::json;

// How often a rank that waits looks whether another one has given up.
constexpr std::chrono::milliseconds kWaitSlice{250};

std::string AddressKey(const Group& group, int rank) {
  return fmt::format("/comm/{}/address/{}", group.id, rank);
}

std::string EncodeAddresses(const Group& group, const std::vector<std::vector<char>>& addresses) {
  json list = json::array();
  for (const std::vector<char>& address : addresses) {
    list.push_back(std::vector<std::uint8_t>(address.begin(), address.end()));
  }
  return json{{"size", group.size()}, {"addresses", list}}.dump();
}

Result<std::vector<char>> DecodeAddress(const Group& group, int peer, const std::string& text) {
  try {
    const json value = json::parse(text);
    const int size = value.at("size").get<int>();
    if (size != group.size()) {
      return Status(Code::kInvalidArgument,
                    fmt::format("communicator {}: rank {} came with a world of {} ranks, rank {} "
                                "with {}",
                                group.name, group.JobRank(peer).value(), size, group.self().value(),
                                group.size()));
    }
    const auto bytes = value.at("addresses")
                           .at(static_cast<std::size_t>(group.rank))
                           .get<std::vector<std::uint8_t>>();
    return std::vector<char>(bytes.begin(), bytes.end());
  } catch (const json::exception& error) {
    return Status(Code::kInternal,
                  fmt::format("communicator {}: rank {} published an unreadable "
                              "address: {}",
                              group.name, group.JobRank(peer).value(), error.what()));
  }
}

}  // namespace

Status MissingRanks(const Group& group, const std::vector<int>& missing, const std::string& what,
                    FailureArbiter& arbiter) {
  FailureArbiter::Evidence evidence;
  evidence.own.failure_class = CommFailure::Class::kNotJoined;
  evidence.own.by_rank = static_cast<int>(group.self().value());
  evidence.own.operation = "init";
  evidence.members = group.members;
  for (const int rank : missing) evidence.own.suspects.push_back({group.JobRank(rank), what});
  const Verdict verdict = arbiter.Judge(group.id, evidence);
  CommFailure failure;
  failure.failure_class = verdict.failure_class;
  failure.communicator = group.name;
  failure.operation = "init";
  failure.suspects = verdict.suspects;
  std::vector<std::int64_t> ranks;
  for (const CommFailure::Suspect& suspect : verdict.suspects) {
    ranks.push_back(suspect.rank.value());
  }
  return Status(std::move(failure),
                fmt::format("communicator {}: rank {} cannot connect: {} of {} ranks are missing "
                            "(rank {}): {}",
                            group.name, group.self().value(), ranks.size(), group.size(),
                            fmt::join(ranks, ", "), Sentence(verdict)));
}

Result<std::vector<std::vector<char>>> ExchangeAddresses(
    const Group& group, const std::vector<std::vector<char>>& addresses, KeyValue& store,
    FailureArbiter& arbiter, Deadline deadline) {
  PERDURE_RETURN_IF_ERROR(
      store.Set(AddressKey(group, group.rank), EncodeAddresses(group, addresses), deadline)
          .WithContext(fmt::format("communicator {}", group.name)));
  std::vector<std::vector<char>> peers(static_cast<std::size_t>(group.size()));
  std::vector<int> missing;
  for (int peer = 0; peer < group.size(); ++peer) {
    if (peer == group.rank) continue;
    for (;;) {
      const Deadline slice = Earlier(deadline, Deadline::After(kWaitSlice));
      const Result<std::string> value = store.Get(AddressKey(group, peer), slice);
      if (value.ok()) {
        PERDURE_ASSIGN_OR_RETURN(peers[static_cast<std::size_t>(peer)],
                                 DecodeAddress(group, peer, *value));
        break;
      }
      if (value.status().code() != Code::kDeadlineExceeded) {
        return value.status().WithContext(fmt::format("communicator {}", group.name));
      }
      if (deadline.Passed(RealClock().Now())) {
        missing.push_back(peer);
        break;
      }
      if (arbiter.KnownCause(group.id, group.members, deadline).has_value()) {
        return MissingRanks(group, {peer}, "it has not come", arbiter);
      }
    }
  }
  if (!missing.empty()) {
    return MissingRanks(group, missing, "it has not come within the init deadline", arbiter);
  }
  return peers;
}

}  // namespace perdure
