// Exceptions of libtorch end here: each call into it is wrapped, and what it throws becomes a
// Status.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <new>
#include <string>

#include "perdure/status.h"

namespace perdure::torch {

// Calls `call` (which returns Status or Result) and returns what it returns; `doing` says what
// failed when it throws.
template <class Call>
auto Guarded(const char* doing, Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (const c10::Error& error) {
    return Status(Code::kInternal, std::string(doing) + ": " + error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return Status(Code::kResourceExhausted, std::string(doing) + ": out of memory");
  } catch (const std::exception& error) {
    return Status(Code::kInternal, std::string(doing) + ": " + error.what());
  }
}

}  // namespace perdure::torch
