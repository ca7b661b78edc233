// The versions of a stage's weights that micro-batches in flight use.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "troika/compat/storage.h"

namespace troika::parallel {

// Keeps older versions of parameters beside the newest one (weight stashing: Narayanan et al., SOSP
// 2019, section 3.3). Every version has memory of its own, so a step changes no memory that a
// recorded graph refers to. Unless it `stashes`, all versions have the newest values in one memory,
// and differ only in autograd's count of changes: a backward pass then takes values that have
// changed since its forward pass. Not thread-safe.
class WeightVersions {
 public:
  // Starts with the parameters' values as version 0.
  WeightVersions(std::vector<at::Tensor> parameters, bool stashes);

  int64_t newest() const { return newest_; }
  // The number of versions that have memory, the newest included.
  size_t kept() const { return stashes_ ? older_.size() + 1 : 1; }

  // Drops the versions before `version`, except for the newest.
  void drop_before(int64_t version);
  // Makes the next version, with the newest one's values, in which an optimizer then steps. Keeps
  // the version before it if `keeps`; its memory is the next version's otherwise.
  void begin_next(bool keeps);
  // Makes the newest version number 0, and drops all others.
  void restart();

  // While this object lives, the parameters have the values and the memory of a version.
  class [[nodiscard]] Using {
   public:
    Using(WeightVersions& versions, int64_t version);
    ~Using();
    Using(const Using&) = delete;
    Using& operator=(const Using&) = delete;

   private:
    WeightVersions& versions_;
    const bool is_older_;
  };

 private:
  using Memory = std::vector<compat::LeafMemory>;  // by parameter

  Memory memory() const;
  void use(const Memory& memory) const;

  const std::vector<at::Tensor> parameters_;
  const bool stashes_;
  int64_t newest_ = 0;
  std::map<int64_t, Memory> older_;
  Memory aside_;  // the newest, while another version is used
};

}  // namespace troika::parallel
