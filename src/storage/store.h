// Small objects under names, for what must be taken by one only and must not be lost: who owns a
// checkpoint root, what descends from what, what is kept. Five verbs, chosen so that a directory
// and an object store can both keep them: there is no rename, no append and no lock.
//
// Vocabulary. A *key* is one or more components joined by "/"; a component is made of letters,
// digits, '.', '_' and '-' and does not begin with ".tmp-"; "." and ".." are none. What a key leads
// to is its *value*. A key must not go through another one ("a" and "a/b"): a directory cannot hold
// both.
//
// Every verb is atomic: others see a value as a whole or not at all. What a verb that changes
// something has returned OK for survives a loss of power. After an error it has taken effect or
// not, or will.
//
// Errors: kInvalidArgument is a key that is none. kNotFound and kAlreadyExists mean what they say,
// kResourceExhausted is a full store or quota, kFailedPrecondition is permission; kUnavailable is
// everything else that went wrong below us. The message names the place and the cause.
//
// Threads: any. Other processes, on other machines, may use the same store.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "perdure/status.h"

namespace perdure {

class Store {
 public:
  virtual ~Store() = default;

  // `key` leads to `value` from now on, whatever it was before.
  virtual Status Put(const std::string& key, std::string_view value) = 0;
  // `key` leads to `value`, and did not exist before; kAlreadyExists when it leads to anything
  // else. A store whose answer was lost cannot tell its own success from somebody else's equal
  // value, so equal is OK: who must be the only one puts something random into the value.
  virtual Status Create(const std::string& key, std::string_view value) = 0;
  // At most `bytes` bytes of the value from `offset`; fewer only where it ends.
  virtual Result<std::string> Get(const std::string& key, std::int64_t offset,
                                  std::int64_t bytes) = 0;
  // The last components of the keys that are `directory`, "/" and one component more, sorted by
  // their bytes; "" is the top. None when there are none. Sees every change that ended before.
  virtual Result<std::vector<std::string>> List(const std::string& directory) = 0;
  // `key` leads to nothing; OK also when it did not before.
  virtual Status Remove(const std::string& key) = 0;

  // Where `key` lies, for messages: a path, an address; "": the store itself. Touches nothing.
  virtual std::string Where(const std::string& key) const = 0;
};

// OK: `key` is one. Pure.
Status CheckKey(std::string_view key);
// A component that a key may have. Pure.
bool IsKeyComponent(std::string_view component);
// "directory/name"; just the name at the top.
std::string JoinKey(std::string_view directory, std::string_view name);

// The whole value; kInvalidArgument when it has more than `bytes_max`.
Result<std::string> GetWhole(Store& store, const std::string& key, std::int64_t bytes_max);

// Whether `key` leads to something.
Result<bool> Exists(Store& store, const std::string& key);

}  // namespace perdure
