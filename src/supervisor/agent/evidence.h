// What can be seen of a process from outside, as a text for a person: state, resources, and for
// each thread its name, state, CPU time, where it waits in the kernel, and its kernel stack when we
// may read it. From /proc alone; stops nothing.
#pragma once

#include <sys/types.h>

#include <string>

namespace perdure::agent {

// Longer texts are cut, and say so.
inline constexpr std::size_t kEvidenceBytesMax = 64 << 10;
inline constexpr int kEvidenceThreadsMax = 256;

std::string EvidenceOf(pid_t pid, const std::string& log_path);

}  // namespace perdure::agent
