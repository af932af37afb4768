// The control store as every other rank sees it: KeyValue over gRPC.
#pragma once

#include <memory>
#include <string>

#include "control/key_value.h"
#include "perdure/ids.h"

namespace perdure {

// Dials lazily: the first call connects. Each call ends by its own deadline; within it, a broken
// connection is made again and the request is sent again (which is harmless: sets and compares are
// idempotent, additions carry an id).
//
// kUnavailable "the control store at H:P (rank 0) is unreachable" when the host is gone or silent;
// kDeadlineExceeded only from Get, when the store answered that the key is not there yet.
std::unique_ptr<KeyValue> ConnectKeyValue(const std::string& address, Generation generation);

}  // namespace perdure
