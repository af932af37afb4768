// The first values of a new run from safetensors files that some other program wrote. Not a resume:
// nothing says of which step they are, and there are no hashes to check; so everything that can be
// compared is compared strictly, and the log is loud.
//
// Protocol, on the training thread of every rank, after the restore has decided on a fresh start:
//   1 every rank reads the headers of all files, compares names, dtypes and shapes of what the
//     table says is to be found there, reads the bytes of its pieces into memory of the engine's,
//     and answers with its differences and with the names that it used
//   2 rank 0 has all answers: no difference, and no tensor of the files that no rank used → "go";
//     else one error that lists everything
//   3 on "go", and only then, every rank copies the values into the program's tensors (CKPT-8)
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/exchange.h"
#include "checkpoint/init_from.h"
#include "checkpoint/parts.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/staging.h"
#include "device/device.h"
#include "perdure/clock.h"
#include "perdure/status.h"
#include "storage/files.h"

namespace perdure {

// The name in the files; nothing: not looked for. Pure.
std::optional<std::string> ForeignName(const std::map<std::string, std::string>& names,
                                       const std::string& name);

// What lies in the files: their headers.
class ForeignTensors {
 public:
  struct Place {
    std::size_t file = 0;
    std::int64_t data_start = 0;
    SafetensorsEntry entry;
  };

  // kInvalidArgument, kNotFound: there are no such files; kDataLoss: they are not what the format,
  // or their index, says.
  static Result<ForeignTensors> Open(Files& files, const std::string& path);

  const std::vector<std::string>& files() const { return files_; }
  const std::map<std::string, Place>& tensors() const { return tensors_; }

 private:
  Status Add(Files& files, const std::string& path);

  std::vector<std::string> files_;
  std::map<std::string, Place> tensors_;
};

struct InitReport {
  std::int64_t tensors = 0;  // of this rank
  std::int64_t bytes = 0;    // read by this rank
};

Result<InitReport> RunForeignInit(const InitFrom& from, Exchange& exchange, Files& files,
                                  Parts& parts, Staging& staging, const Devices& devices,
                                  Deadline deadline);

}  // namespace perdure
