// A checkpoint, from which every rank takes the parts of tensors that it needs.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troika/train/checkpoint/index.h"
#include "troika/train/checkpoint/safetensors.h"

namespace troika::train {

// The tensors of one rank. Only files that hold some of the requested ones are opened, and only
// the chunks concerned are read, each against its checksum. All throw Error(usage) naming the file,
// and the tensor, where something is not as it was written. Not for use by several threads.
class CheckpointReader {
 public:
  // Reads the index alone. A rank there was not has what rank 0 had.
  CheckpointReader(std::filesystem::path checkpoint, int rank);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;

  const std::filesystem::path& path() const { return checkpoint_; }
  int rank() const { return rank_; }
  int64_t format() const { return index_->format; }
  int ranks() const { return index_->ranks; }  // that wrote it
  // The same checkpoint for another rank.
  CheckpointReader of(int rank) const;

  // All that begin with this, in the order of the alphabet.
  std::vector<std::string> names(std::string_view prefix) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
  const std::vector<int64_t>& shape(const std::string& name) const { return at(name).shape; }

  at::Tensor read(const std::string& name) const;
  // Elements [offset, offset + count) in the order of dimensions: [count].
  at::Tensor read(const std::string& name, int64_t offset, int64_t count) const;
  // All that begin with this, under their names without it.
  NamedTensors read_all(const std::string& prefix) const;

 private:
  CheckpointReader(std::filesystem::path checkpoint, int rank,
                   std::shared_ptr<const CheckpointIndex> index);

  const SavedTensor* find(const std::string& name) const;
  const SavedTensor& at(const std::string& name) const;
  const SafetensorsFile& file(const std::string& name) const;
  at::Tensor read(const std::string& name, const SavedTensor& tensor, const SavedSlice& slice,
                  int64_t offset, int64_t count) const;

  std::filesystem::path checkpoint_;
  int rank_;
  std::shared_ptr<const CheckpointIndex> index_;
  mutable std::map<std::string, std::unique_ptr<const SafetensorsFile>> files_;
};

}  // namespace troika::train
