#include "checkpoint/prune.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "checkpoint/claim.h"
#include "checkpoint/inspect.h"
#include "storage/file_store.h"

namespace perdure {
namespace {

std::string HostName() {
  char host[256] = "unknown";
  static_cast<void>(::gethostname(host, sizeof(host) - 1));
  return host;
}

// OK: the holder of the highest claim is known to be gone.
Status CheckNobodyAtWork(Store& store, Generation highest) {
  if (highest.value() == 0) return Ok();
  const Result<Claimant> claimant = ReadClaimant(store, highest);
  const std::string how =
      "its own retention keeps the directory small while it runs; stop the job first, or take the "
      "right to commit from it with --fence";
  if (!claimant.ok()) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("generation {} may be at work (its claim does not say who holds it: "
                              "{}): {}",
                              highest.value(), claimant.status().message(), how));
  }
  if (claimant->host != HostName()) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("generation {} may be at work on {} (process {}), which cannot be "
                              "looked at from here: {}",
                              highest.value(), claimant->host, claimant->pid, how));
  }
  // A process that is not ours to signal lives, too.
  if (::kill(claimant->pid, 0) == 0 || errno != ESRCH) {
    return Status(Code::kFailedPrecondition,
                  fmt::format("generation {} is at work (process {}): {}", highest.value(),
                              claimant->pid, how));
  }
  return Ok();
}

}  // namespace

Result<PruneReport> PruneCheckpoints(Files& files, const std::string& root,
                                     const PruneOptions& options, WallTime now) {
  PERDURE_ASSIGN_OR_RETURN(const RootFile file, RootOf(files, root));
  PERDURE_ASSIGN_OR_RETURN(const Lineage lineage, HeadLineage(files, root));
  PruneReport report;
  if (options.dry_run) {
    PERDURE_ASSIGN_OR_RETURN(report.verdicts,
                             JudgeCheckpoints(files, root, file.root_id, lineage, options.policy));
    return report;
  }
  // 1
  FileStore store(files, root);
  PERDURE_ASSIGN_OR_RETURN(const Generation highest, HighestGeneration(store));
  if (!options.fence) PERDURE_RETURN_IF_ERROR(CheckNobodyAtWork(store, highest));
  // 2: exactly the next number, so that a generation that claimed since the look is not fenced
  const Generation mine = highest.Next();
  PERDURE_RETURN_IF_ERROR(ClaimGeneration(files, root, file.job, mine, now));
  // 3
  const DeleterOptions deleter{root, file.root_id, mine, options.policy};
  PERDURE_ASSIGN_OR_RETURN(DeleterReport done, RunRetention(files, deleter, lineage));
  PERDURE_RETURN_IF_ERROR(EmptyTrash(files, deleter, lineage, done));
  report.verdicts = std::move(done.verdicts);
  report.deleted = std::move(done.deleted);
  return report;
}

}  // namespace perdure
