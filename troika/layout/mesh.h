// Ranks as a grid of named axes with sizes, in a fixed order. Axes are named as in PyTorch's
// DeviceMesh and in Megatron-LM (Narayanan et al. 2021, arXiv 2104.04473).
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

// Returns "pipeline", "data", "tensor", "context" or "expert".
std::string_view name(Axis axis);

// A rank's coordinate on every axis, from 0; 0 on an axis that its mesh lacks.
struct Coordinates {
  std::array<int, kAxes> values{};

  int& operator[](Axis axis) { return values[static_cast<size_t>(axis)]; }
  int operator[](Axis axis) const { return values[static_cast<size_t>(axis)]; }
  bool operator==(const Coordinates&) const = default;
};

// Text form: `pipeline=2 data=4 tensor=2`. Axes are ordered from the outermost to the innermost:
// neighbours on the innermost axis have consecutive ranks. Pipeline stages may have different
// numbers of replicas, written as one number per stage: `pipeline=3 data=2-1-1`.
class Mesh {
 public:
  // One rank, without axes.
  Mesh() = default;
  // One axis.
  Mesh(Axis axis, int size);

  // Reads the text form. One axis may have the size -1: `world` divided by the other sizes, or 1 if
  // `world` is 0 (unknown). `place` follows the text in errors, as ` (plan.toml:12)`. Throws
  // Error(usage) for an unknown axis, an axis given twice, a size < 1, a product beyond 2^31 - 1, a
  // -1 that does not divide evenly, and for per-stage replicas unless the pipeline axis is
  // outermost and has one number per stage.
  static Mesh parse(std::string_view text, int world = 0, const std::string& place = {});
  std::string text() const;

  int ranks() const;
  // Returns the axes, outermost first.
  const std::vector<Axis>& axes() const { return axes_; }
  // Returns 1 for an axis that the mesh lacks. Throws Error(usage) for the data axis if stages have
  // different numbers of replicas.
  int size(Axis axis) const;
  // Returns the size of the data axis in this pipeline stage.
  int replicas(int stage) const;
  bool has_uneven_stages() const { return !replicas_.empty(); }
  // Returns the number of parts into which the samples of a micro-batch are divided: the size of
  // the data axis or, if stages have different numbers of replicas, 1, because these replicas share
  // whole micro-batches.
  int sample_shares() const { return has_uneven_stages() ? 1 : size(Axis::data); }

  // Inverses of each other. Throw CheckError for arguments outside of the mesh.
  Coordinates coordinates(int rank) const;
  int rank(const Coordinates& at) const;
  // Returns the rank at these coordinates, or nothing if the mesh has none there.
  std::optional<int> find(const Coordinates& at) const;
  // Whether both meshes have the same number of ranks, each rank at the same coordinates.
  bool has_places_of(const Mesh& other) const;

  // Returns the ranks whose coordinates differ from those of `rank` only along `axes`, including
  // `rank`, ascending. Throws Error(usage) for the pipeline axis without the data axis if stages
  // have different numbers of replicas, since then a rank has no unique peer in the next stage.
  std::vector<int> group(int rank, const std::vector<Axis>& axes) const;

  // Returns "rank 5 = pipeline 1, data 0, tensor 1"; "rank 0" for a mesh without axes.
  std::string describe(int rank) const;
  // Returns "pipeline 1, data 0, tensor 1"; empty for a mesh without axes.
  std::string place(int rank) const;

  bool operator==(const Mesh&) const = default;

 private:
  // Returns the number of ranks in a pipeline stage.
  int ranks_of_stage(int stage) const;
  int size_in(Axis axis, int stage) const;

  std::vector<Axis> axes_;
  std::array<int, kAxes> sizes_{1, 1, 1, 1, 1};
  std::vector<int> replicas_;  // by stage, if stages differ; then sizes_ has 1 for data
};

}  // namespace troika::layout
