// One reader of environment variables per launcher; environment.h puts them in order.
#pragma once

#include <optional>
#include <string>

#include "troika/cluster/environment.h"

namespace troika::cluster {

// Variables with typed access and the room's errors.
class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  std::optional<std::string> text(const std::string& name) const;
  bool has(const std::string& name) const { return text(name).has_value(); }
  // The first of the names that is set; "" when none is.
  std::string first_of(std::initializer_list<const char*> names) const;
  // The variable as an integer >= low; nothing when it is not set (or the name is empty).
  std::optional<int> number(const std::string& name, int low) const;
  // The same for one that was found to be set.
  int require(const std::string& name, int low) const { return number(name, low).value(); }

 private:
  const Variables& variables_;
};

// Thrown in place of a result where a launcher has left some of its variables but not all.
[[noreturn]] void fail_incomplete(const std::string& got, const std::string& missing,
                                  const std::string& expected = "both");
// `name` holds `value`, which is not below the `count` that `count_name` tells.
[[noreturn]] void fail_range(const std::string& name, int value, const std::string& count_name,
                             int count);

// Whether the launcher has left the variables it is known by.
bool has_torchrun(const Reader& reader);  // both RANK and WORLD_SIZE
bool has_slurm(const Reader& reader);
bool has_openmpi(const Reader& reader);
bool has_pmi(const Reader& reader);
bool has_lsf(const Reader& reader);

// How many processes srun started, this one among them; nothing outside srun's steps.
std::optional<int> slurm_step_tasks(const Reader& reader);

// Each expects that its launcher is there, checks every value and leaves master_address empty where
// it does not know it. MASTER_ADDR and MASTER_PORT are for the caller.
Environment read_torchrun(const Reader& reader);
Environment read_slurm(const Reader& reader);
Environment read_openmpi(const Reader& reader);
Environment read_pmi(const Reader& reader);
Environment read_lsf(const Reader& reader);

}  // namespace troika::cluster
