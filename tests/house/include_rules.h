// Who may include what. Rooms are the folders of src/ that src/CMakeLists.txt declares with
// perdure_room, and its DEPS are the arrows:
//
// 1. A file of a room includes its own room's headers, base's, and those of any room that its
//    arrows reach.
// 2. Only wire includes protobuf, gRPC or generated headers.
// 3. Only torch includes perdure/torch.h or libtorch.
// 4. A public header includes the standard library and other public headers, nothing else;
//    perdure/torch.h may include libtorch.
// 5. Clocks, sleeps, the environment and chance are taken from base or cli, never raw.
// 6. An example includes public headers, the standard library and libtorch.
//
// And across files: a type has a full name of its own. Two types of one name in two rooms compile
// and link, and then share what the compiler makes for them: destructors, std::vector's code.
//
// Pure: text in, complaints out.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace perdure::house {

struct Rules {
  // Every declared room with all rooms that it may include: itself, base, and what its arrows
  // reach.
  std::map<std::string, std::set<std::string>> reach;
  // Some optional part is left out of this build, so rooms in src/ may be undeclared.
  bool partial = false;
};

// `text` is what the configuration wrote: a line "room:dep,dep" for each room, and "partial" where
// an optional part is out. A dep that is no room, or a cycle, is a complaint.
Rules ParseRules(std::string_view text, std::vector<std::string>* complaints);

// `path` is relative to the repository, "src/comm/ring.cc". Each complaint is one line that begins
// with file:line.
std::vector<std::string> Check(const Rules& rules, std::string_view path, std::string_view text);

// The types that a file defines in a named namespace: "perdure::wire::Slot".
std::vector<std::string> TypesIn(std::string_view text);

}  // namespace perdure::house
