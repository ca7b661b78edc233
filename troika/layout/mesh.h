// Ranks as a grid: named axes with sizes, in an order. The names are those of PyTorch's DeviceMesh
// and of Megatron-LM (Narayanan et al. 2021, arXiv 2104.04473).
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troika::layout {

enum class Axis { pipeline, data, tensor, context, expert };
inline constexpr size_t kAxes = 5;

// "pipeline", "data", "tensor", "context" or "expert".
std::string_view name(Axis axis);

// A rank's place on every axis, counted from 0; 0 on an axis that its mesh lacks.
struct Coordinates {
  std::array<int, kAxes> values{};

  int& operator[](Axis axis) { return values[static_cast<size_t>(axis)]; }
  int operator[](Axis axis) const { return values[static_cast<size_t>(axis)]; }
  bool operator==(const Coordinates&) const = default;
};

// Text form: `pipeline=2 data=4 tensor=2`. Axes are written from the outermost to the innermost:
// ranks that are neighbours on the innermost axis have consecutive numbers. Stages of a pipeline
// may have different numbers of replicas, one number for each stage: `pipeline=3 data=2-1-1`.
class Mesh {
 public:
  // One rank, with no axis.
  Mesh() = default;
  // One axis.
  Mesh(Axis axis, int size);

  // Reads the text form. A size of -1 is what the other sizes leave of `world` ranks, or 1 where
  // `world` is 0: not known; at most one axis may have it. Throws Error(usage) for another axis, an
  // axis given twice, a size < 1, a product beyond 2^31 - 1, a -1 that does not come out even, and
  // for stages' replicas that are not one number for each stage of a pipeline axis that is the
  // outermost.
  static Mesh parse(std::string_view text, int world = 0);
  std::string text() const;

  int ranks() const;
  // The axes in their order, outermost first.
  const std::vector<Axis>& axes() const { return axes_; }
  // 1 for an axis that the mesh lacks. Throws Error(usage) for the data axis where stages have
  // different numbers of replicas.
  int size(Axis axis) const;
  // Ranks along the data axis in this stage of the pipeline.
  int replicas(int stage) const;
  bool has_uneven_stages() const { return !replicas_.empty(); }

  // Each is the inverse of the other. Throw CheckError for what is outside of the mesh.
  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& at) const;
  // The rank at these coordinates; nothing where the mesh has none there.
  std::optional<int> find(const Coordinates& at) const;
  // Whether both have the same number of ranks, each at the same coordinates.
  bool has_places_of(const Mesh& other) const;

  // The ranks whose coordinates differ from those of `rank` along `axes` alone, `rank` included,
  // ascending. Throws Error(usage) for the pipeline axis without the data axis where stages have
  // different numbers of replicas: a rank of one stage has no partner of its own in the next.
  std::vector<int> group(int rank, const std::vector<Axis>& axes) const;

  // "rank 5 = pipeline 1, data 0, tensor 1"; "rank 0" for a mesh without axes.
  std::string describe(int rank) const;
  // "pipeline 1, data 0, tensor 1"; empty in a mesh without axes.
  std::string place(int rank) const;

  bool operator==(const Mesh&) const = default;

 private:
  // Ranks of stage `stage` on axes inside of the pipeline's.
  int ranks_of_stage(int stage) const;
  int size_in(Axis axis, int stage) const;

  std::vector<Axis> axes_;
  std::array<int, kAxes> sizes_{1, 1, 1, 1, 1};
  std::vector<int> replicas_;  // by stage, where stages differ; then sizes_ has 1 for data
};

}  // namespace troika::layout
