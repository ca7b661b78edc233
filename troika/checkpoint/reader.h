// Reads a checkpoint; each rank reads only the parts of tensors that it needs.
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

// Reads the tensors of one rank. Opens only files that hold requested tensors, reads only the
// chunks concerned, and verifies the checksum of each. All functions throw Error(usage), naming the
// file and the tensor, if anything differs from what was written. Not thread-safe.
class CheckpointReader {
 public:
  // Reads as rank `rank` of the ranks that wrote the checkpoint, or as rank 0 if there were fewer.
  // The constructor reads only the index.
  CheckpointReader(std::filesystem::path checkpoint, int rank);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;

  const std::filesystem::path& path() const { return checkpoint_; }
  int rank() const { return rank_; }
  int64_t format() const { return index_->format; }
  int ranks() const { return index_->ranks; }  // the number that wrote it
  // The mesh of these ranks, from the plan in the index; without a plan, a data axis.
  layout::Mesh mesh() const;
  // The text of the plan in the index; empty: a data axis only.
  const std::string& plan() const { return index_->info.plan; }
  // Returns a reader of the same checkpoint for another rank.
  CheckpointReader of(int rank) const;

  // All names that begin with `prefix`, in alphabetical order.
  std::vector<std::string> names(std::string_view prefix) const;
  bool has(const std::string& name) const { return find(name) != nullptr; }
  const std::vector<int64_t>& shape(const std::string& name) const { return at(name).shape; }

  at::Tensor read(const std::string& name) const;
  // Reads the elements of a box of the tensor named box.name, independently of the boxes in which
  // it was saved. The result has shape box.size or, with a flat range, [count].
  at::Tensor read(const layout::Box& box) const;
  // Reads all tensors whose names begin with `prefix`; the result's names lack the prefix.
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
