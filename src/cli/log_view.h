// What the ranks print, as `perdure run` shows it: every line of rank 0, and of the others those
// that look like errors. Reads the log files as they grow; what was there before is not shown
// again.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace perdure::cli {

class LogView {
 public:
  using Show = std::function<void(int rank, std::string_view line)>;

  explicit LogView(std::string state_directory);

  // Shows complete lines that are new.
  void Poll(const Show& show);
  // The same, and what the last lines hold although they are not complete: nobody writes any more.
  void Finish(const Show& show);

 private:
  struct File {
    std::int64_t offset = 0;
    std::string partial;
  };

  void ForEachLog(const std::function<void(const std::string& path, int rank)>& visit) const;
  void ReadNew(const std::string& path, int rank, const Show& show);

  const std::string state_;
  std::map<std::string, File> files_;
};

}  // namespace perdure::cli
