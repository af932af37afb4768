// A store in a directory: every key is a file of that path below it. Lies on Files, so that
// bounded, direct, recording and faulty files carry it alike. Directories are made as they are
// needed, and stay.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "storage/files.h"
#include "storage/store.h"

namespace perdure {

class FileStore final : public Store {
 public:
  // `files` outlives this. `directory` need not exist: the first value makes it, and those above.
  FileStore(Files& files, std::string directory);

  Status Put(const std::string& key, std::string_view value) override;
  Status Create(const std::string& key, std::string_view value) override;
  Result<std::string> Get(const std::string& key, std::int64_t offset, std::int64_t bytes) override;
  Result<std::vector<std::string>> List(const std::string& directory) override;
  Status Remove(const std::string& key) override;
  std::string Where(const std::string& key) const override;

  // The temporary files that writers of some values in `directory` left there when they died:
  // those of the names for which `of` is true. Whoever is still writing one of them gets an error.
  // Best effort: nobody reads them.
  void RemoveTemporaries(const std::string& directory,
                         const std::function<bool(std::string_view name)>& of);

 private:
  enum class Taken : bool { kRefuse, kReplace };
  Status Publish(const std::string& key, std::string_view value, Taken taken);
  Status Name(const std::string& temporary, const std::string& key, std::string_view value,
              Taken taken);
  // Every name on the way from the store's directory to the value is durable.
  Status SyncNames(const std::string& key);

  Files& files_;
  const std::string directory_;
};

}  // namespace perdure
