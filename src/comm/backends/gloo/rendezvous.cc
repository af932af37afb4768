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

std::string AddressKey(const GlooPlace& place, int rank) {
  return fmt::format("/comm/{}/address/{}", place.id, rank);
}

std::string EncodeAddresses(const GlooPlace& place,
                            const std::vector<std::vector<char>>& addresses) {
  json list = json::array();
  for (const std::vector<char>& address : addresses) {
    list.push_back(std::vector<std::uint8_t>(address.begin(), address.end()));
  }
  return json{{"size", place.size}, {"addresses", list}}.dump();
}

Result<std::vector<char>> DecodeAddress(const GlooPlace& place, int peer, const std::string& text) {
  try {
    const json value = json::parse(text);
    const int size = value.at("size").get<int>();
    if (size != place.size) {
      return Status(Code::kInvalidArgument,
                    fmt::format("communicator {}: rank {} came with a world of {} ranks, rank {} "
                                "with {}",
                                place.name, peer, size, place.rank, place.size));
    }
    const auto bytes = value.at("addresses")
                           .at(static_cast<std::size_t>(place.rank))
                           .get<std::vector<std::uint8_t>>();
    return std::vector<char>(bytes.begin(), bytes.end());
  } catch (const json::exception& error) {
    return Status(Code::kInternal, fmt::format("communicator {}: rank {} published an unreadable "
                                               "address: {}",
                                               place.name, peer, error.what()));
  }
}

}  // namespace

Status MissingRanks(const GlooPlace& place, const std::vector<int>& missing,
                    const std::string& what, FailureArbiter& arbiter) {
  FailureArbiter::Evidence evidence;
  evidence.own.failure_class = CommFailure::Class::kNotJoined;
  evidence.own.by_rank = place.rank;
  evidence.own.operation = "init";
  for (const int rank : missing) evidence.own.suspects.push_back({Rank(rank), what});
  const Verdict verdict = arbiter.Judge(place.id, evidence);
  CommFailure failure;
  failure.failure_class = verdict.failure_class;
  failure.communicator = place.name;
  failure.operation = "init";
  failure.suspects = verdict.suspects;
  std::vector<std::int64_t> ranks;
  for (const CommFailure::Suspect& suspect : verdict.suspects) {
    ranks.push_back(suspect.rank.value());
  }
  return Status(std::move(failure),
                fmt::format("communicator {}: rank {} cannot connect: {} of {} ranks are missing "
                            "(rank {}): {}",
                            place.name, place.rank, ranks.size(), place.size,
                            fmt::join(ranks, ", "), Sentence(verdict)));
}

Result<std::vector<std::vector<char>>> ExchangeAddresses(
    const GlooPlace& place, const std::vector<std::vector<char>>& addresses, KeyValue& store,
    FailureArbiter& arbiter, Deadline deadline) {
  PERDURE_RETURN_IF_ERROR(
      store.Set(AddressKey(place, place.rank), EncodeAddresses(place, addresses), deadline)
          .WithContext(fmt::format("communicator {}", place.name)));
  std::vector<std::vector<char>> peers(static_cast<std::size_t>(place.size));
  std::vector<int> missing;
  for (int peer = 0; peer < place.size; ++peer) {
    if (peer == place.rank) continue;
    for (;;) {
      const Deadline slice = Earlier(deadline, Deadline::After(kWaitSlice));
      const Result<std::string> value = store.Get(AddressKey(place, peer), slice);
      if (value.ok()) {
        PERDURE_ASSIGN_OR_RETURN(peers[static_cast<std::size_t>(peer)],
                                 DecodeAddress(place, peer, *value));
        break;
      }
      if (value.status().code() != Code::kDeadlineExceeded) {
        return value.status().WithContext(fmt::format("communicator {}", place.name));
      }
      if (deadline.Passed(RealClock().Now())) {
        missing.push_back(peer);
        break;
      }
      if (arbiter.KnownCause(place.id, deadline).has_value()) {
        return MissingRanks(place, {peer}, "it has not come", arbiter);
      }
    }
  }
  if (!missing.empty()) {
    return MissingRanks(place, missing, "it has not come within the init deadline", arbiter);
  }
  return peers;
}

}  // namespace perdure
