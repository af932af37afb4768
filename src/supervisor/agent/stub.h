// `perdure _rank`: the short life between the agent's spawn and the program of a rank.
//
//  1. begin a session of its own, so that no terminal signal reaches the rank;
//  2. ask for SIGKILL when the agent's thread that spawned it ends (PR_SET_PDEATHSIG, prctl(2);
//     kept over execve);
//  3. check that the agent is still the parent: it may have died before 2;
//  4. close everything but 0, 1, 2 and the status pipe, which closes itself when the program
//     starts;
//  5. enter the working directory and become the program.
// What goes wrong is written to the status pipe, one line; an empty pipe at its end means: started.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace perdure::agent {

// The status pipe in the stub.
inline constexpr int kStubStatusFd = 3;
// How the stub ends when the program could not be started.
inline constexpr int kStubFailed = 127;

struct StubArguments {
  pid_t parent = 0;
  std::string working_directory;
  std::vector<std::string> command;
};

// The words after `perdure _rank`.
std::vector<std::string> ToWords(const StubArguments& arguments);

// Never returns to the caller with success: the process becomes the program.
int RunStub(const std::vector<std::string>& words);

}  // namespace perdure::agent
