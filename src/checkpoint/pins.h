// Checkpoints that a person wants kept: ROOT/pins/<checkpoint>.pin, docs/formats/pins.md, a value
// of the store whose top is the root. The name is what counts, so a pin whose content has decayed
// still holds.
//
// A pin and the deleter may meet. Neither waits for the other; the order of their steps is what
// makes it safe:
//   pinning   1 publish the pin, durable   2 look: is the checkpoint still under its final name?
//             no → take the pin back and say that it came too late
//   retiring  1 rename the checkpoint into the trash   2 look: is it pinned? yes → rename it back
// Whoever comes second sees the other. What a crash leaves between the two steps of retiring is put
// back before anything is deleted (deleter.h).
#pragma once

#include <map>
#include <string>

#include "checkpoint/lineage.h"
#include "perdure/clock.h"
#include "perdure/status.h"
#include "storage/store.h"

namespace perdure {

struct Pin {
  CheckpointId id;
  std::string reason;   // for people; empty when its content cannot be read
  std::string created;  // RFC 3339
};

// Pins a committed checkpoint. Pinning what is pinned is fine and changes nothing. kNotFound: there
// is none of this name, or it was retired meanwhile.
Status PinCheckpoint(Store& store, const CheckpointId& id, const std::string& reason, WallTime now);

// kNotFound: it was not pinned.
Status UnpinCheckpoint(Store& store, const CheckpointId& id);

// Every pin of the root, in the order of their names. An error of the disk is an error: who would
// delete must know them all.
Result<std::map<std::string, Pin>> ReadPins(Store& store);

Result<bool> IsPinned(Store& store, const CheckpointId& id);

}  // namespace perdure
