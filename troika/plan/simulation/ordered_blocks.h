// The blocks of a profile in the order of a chain.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "troika/layout/profile.h"
#include "troika/layout/stage_cut.h"

namespace troika::plan {

using Blocks = std::span<const layout::ProfiledBlock>;

// The profile's blocks in topological order: each block comes after its inputs.
class OrderedBlocks {
 public:
  explicit OrderedBlocks(const layout::Profile& profile);

  size_t size() const { return blocks_.size(); }
  Blocks range(size_t begin, size_t end) const {
    return Blocks(blocks_).subspan(begin, end - begin);
  }

  // Returns the ends of the stages of a plan's cut, or of layout::balanced_cut() if the text is
  // empty. `place` is that of the cut, for errors. Throws Error(usage) for another number of
  // stages, and the errors of layout::parse_cut().
  layout::StageEnds cut(const std::string& text, int stages, const std::string& place) const;

  // Returns the bytes of the outputs before `end` that blocks from `end` on read.
  double crossing(size_t end) const;

 private:
  std::vector<layout::ProfiledBlock> blocks_;
  std::vector<size_t> last_reader_;  // itself if nobody reads it
};

}  // namespace troika::plan
