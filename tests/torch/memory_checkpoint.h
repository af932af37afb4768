// A checkpoint in memory, for tests of Stateful: packs what Describe() shows, and puts it back as
// strictly as the real one does.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "perdure/tensor.h"

namespace perdure::test {

struct MemoryCheckpoint {
  struct Tensor {
    DType dtype;
    Shape shape;
    std::string bytes;  // packed
  };
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> blobs;
};

// Calls `visit(element)` with the address of each element, row by row.
template <class Visit>
void ForEachElement(const TensorView& view, Visit&& visit) {
  const std::int64_t width = BitsOf(view.dtype) / 8;
  Shape strides = view.strides;
  if (strides.empty()) {
    strides.assign(view.shape.size(), 1);
    for (std::size_t d = view.shape.size(); d-- > 1;) strides[d - 1] = strides[d] * view.shape[d];
  }
  const std::int64_t count = *ElementCount(view.shape);
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i;
    std::int64_t offset = 0;
    for (std::size_t d = view.shape.size(); d-- > 0;) {
      offset += rest % view.shape[d] * strides[d];
      rest /= view.shape[d];
    }
    visit(static_cast<char*>(view.data) + offset * width);
  }
}

inline std::string Pack(const TensorView& view) {
  const auto width = static_cast<std::size_t>(BitsOf(view.dtype) / 8);
  std::string bytes;
  ForEachElement(view, [&](const char* element) { bytes.append(element, width); });
  return bytes;
}

inline Result<MemoryCheckpoint> Save(Stateful& part) {
  PERDURE_ASSIGN_OR_RETURN(const State state, part.Describe());
  MemoryCheckpoint checkpoint;
  for (const TensorEntry& entry : state.tensors) {
    if (!checkpoint.tensors
             .emplace(entry.name, MemoryCheckpoint::Tensor{entry.view.dtype, entry.view.shape,
                                                           Pack(entry.view)})
             .second) {
      return Status(Code::kAlreadyExists, entry.name);
    }
  }
  for (const BlobEntry& blob : state.blobs) checkpoint.blobs[blob.name] = blob.bytes;
  return checkpoint;
}

inline Status Load(const MemoryCheckpoint& checkpoint, Stateful& part) {
  SavedState saved;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    saved.tensors.push_back({name, tensor.dtype, tensor.shape});
  }
  for (const auto& [name, bytes] : checkpoint.blobs) saved.blobs.push_back(name);
  PERDURE_RETURN_IF_ERROR(part.PrepareRestore(saved));
  PERDURE_ASSIGN_OR_RETURN(State state, part.Describe());
  if (state.tensors.size() != checkpoint.tensors.size() ||
      state.blobs.size() != checkpoint.blobs.size()) {
    return Status(Code::kInvalidArgument, "the checkpoint and the program hold different entries");
  }
  for (const TensorEntry& entry : state.tensors) {
    const auto found = checkpoint.tensors.find(entry.name);
    if (found == checkpoint.tensors.end()) return Status(Code::kNotFound, entry.name);
    const MemoryCheckpoint::Tensor& tensor = found->second;
    if (tensor.dtype != entry.view.dtype || tensor.shape != entry.view.shape) {
      return Status(Code::kInvalidArgument, entry.name + " has another dtype or shape");
    }
    const auto width = static_cast<std::size_t>(BitsOf(tensor.dtype) / 8);
    const char* from = tensor.bytes.data();
    ForEachElement(entry.view, [&](char* element) {
      std::memcpy(element, from, width);
      from += width;
    });
  }
  for (BlobEntry& blob : state.blobs) {
    const auto found = checkpoint.blobs.find(blob.name);
    if (found == checkpoint.blobs.end()) return Status(Code::kNotFound, blob.name);
    blob.bytes = found->second;
  }
  return part.FinishRestore(state.blobs);
}

}  // namespace perdure::test
