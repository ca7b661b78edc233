// A checkpoint, from which every rank takes the parts of tensors that it needs.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troika/checkpoint/index.h"
#include "troika/checkpoint/safetensors.h"
#include "troika/layout/mesh.h"

namespace troika::checkpoint {

// The tensors of one rank. Only files that hold some of the requested ones are opened, and only
// the chunks concerned are read, each against its checksum. All throw Error(usage) naming the file,
// and the tensor, where something is not as it was written. Not for use by several threads.
class CheckpointReader {
 public:
  // Reads as rank `rank` of the ranks that wrote it, or as rank 0 where they were fewer.
  // Reads the index alone.
  CheckpointReader(std::filesystem::path checkpoint, int rank);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;

  const std::filesystem::path& path() const { return checkpoint_; }
  int rank() const { return rank_; }
  int64_t format() const { return index_->format; }
  int ranks() const { return index_->ranks; }  // that wrote it
  // Of these ranks, as the plan in the index has it; without a plan they are the data axis.
  layout::Mesh mesh() const;
  // The same checkpoint for another rank.
  CheckpointReader of(int rank) const;

  // All that begin with this, in the order of the alphabet.
  std::vector<std::string> names(std::string_view prefix) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
  const std::vector<int64_t>& shape(const std::string& name) const { return at(name).shape; }

  at::Tensor read(const std::string& name) const;
  // The elements of a box of the tensor of the box's name, whatever boxes it was written in: in the
  // shape box.size or, with a flat range, [count].
  at::Tensor read(const layout::Box& box) const;
  // All that begin with this, under their names without it.
  NamedTensors read_all(const std::string& prefix) const;

 private:
  CheckpointReader(std::filesystem::path checkpoint, int rank,
                   std::shared_ptr<const CheckpointIndex> index);

  const SavedTensor* find(const std::string& name) const;
  const SavedTensor& at(const std::string& name) const;
  const SafetensorsFile& file(const std::string& name) const;
  void read(const layout::Box& box, const SavedTensor& tensor, const SavedBox& saved,
            const at::Tensor& into) const;

  std::filesystem::path checkpoint_;
  int rank_;
  std::shared_ptr<const CheckpointIndex> index_;
  mutable std::map<std::string, std::unique_ptr<const SafetensorsFile>> files_;
};

}  // namespace troika::checkpoint
