// What the verbs under `perdure checkpoint` share.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/verbs.h"

namespace perdure::cli {

struct CheckpointVerbOptions {
  std::string directory = "checkpoints";
  std::string name;
  bool json = false;
  // verify
  bool all = false;
  bool restore = false;
  // diff
  std::string other;
  std::string other_directory;
  // export
  std::string part = "model";
  bool all_parts = false;
  std::string out;
  std::string max_shard_size;
  // prune
  int keep_last_n = 3;
  std::int64_t keep_every_steps = 0;
  bool dry_run = false;
  bool fence = false;
  // pin
  std::string reason;
  bool unpin = false;
};

using CheckpointVerb = int (*)(const CheckpointVerbOptions&);

// A verb with --directory, and --json, that runs within the parse.
CLI::App* AddCheckpointVerb(CLI::App& parent, const std::shared_ptr<CheckpointVerbOptions>& options,
                            int& exit_code, const std::string& name, const std::string& description,
                            CheckpointVerb run);

// How a checkpoint may be named.
inline constexpr const char* kWhichCheckpoint =
    "a directory name, or a step of the lineage; default: the newest good one";

// "5GB" (10^9), "512MiB", "4096": bytes. kInvalidArgument for anything else. Pure.
Result<std::int64_t> ParseSize(const std::string& text);

// export, prune, pin: those that write.
void AddCheckpointChanges(CLI::App& verbs, const std::shared_ptr<CheckpointVerbOptions>& options,
                          int& exit_code);

}  // namespace perdure::cli
