// Where the first values of a new run come from, when not from the program; see foreign_init.h.
#pragma once

#include <map>
#include <string>

namespace perdure {

struct InitFrom {
  // A safetensors file; or a directory with model.safetensors.index.json, or model.safetensors.
  // Empty: none.
  std::string path;
  // Names in the program → names in the files. A name that ends in "." stands for all that begin so
  // (the longest counts), "" for all; any other one is that tensor alone, and goes first. A tensor
  // alone → "": it is not in the files, and keeps what the program gave it. Tensors that no line
  // matches are not looked for.
  std::map<std::string, std::string> names = {{"model.", ""}};
};

}  // namespace perdure
