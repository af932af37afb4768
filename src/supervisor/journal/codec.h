// Journalled events and the policy they were judged by, as JSON texts. The names in them are part
// of the journal's format (schema version in journal.h): a key that is missing reads as its
// default, a key that is unknown is skipped, so that a journal outlives its program by one version
// either way.
#pragma once

#include <string>
#include <string_view>

#include "perdure/status.h"
#include "supervisor/core/event.h"
#include "supervisor/core/policy.h"

namespace perdure::journal {

// The body of a heard or derived event; its kind is KindOf(event).
std::string EncodeBody(const core::Event& event);
Status DecodeBody(std::string_view kind, std::string_view text, core::Event& event);

std::string EncodePolicy(const core::Policy& policy);
Result<core::Policy> DecodePolicy(std::string_view text);

}  // namespace perdure::journal
