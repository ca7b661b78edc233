// Readers for each launcher's environment variables; environment.h defines their order.
#pragma once

#include <optional>
#include <string>

#include "troika/cluster/discovery/environment.h"

namespace troika::cluster {

// Typed access to variables, with error messages.
class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  std::optional<std::string> text(const std::string& name) const;
  bool has(const std::string& name) const { return text(name).has_value(); }
  // Returns the first of the names that is set; "" if none is.
  std::string first_of(std::initializer_list<const char*> names) const;
  // Returns the variable as an integer >= low; nullopt if it is not set or the name is empty.
  // Throws Error(cluster, usage) for other values.
  std::optional<int> number(const std::string& name, int low) const;
  // Like number(), for a variable that is known to be set.
  int require(const std::string& name, int low) const { return number(name, low).value(); }

 private:
  const Variables& variables_;
};

// Throws Error(cluster, usage): some of a launcher's variables are set, others are missing.
[[noreturn]] void fail_incomplete(const std::string& got, const std::string& missing,
                                  const std::string& expected = "both");
// Throws Error(cluster, usage): `value` of variable `name` is not below `count`, given by
// `count_name`.
[[noreturn]] void fail_range(const std::string& name, int value, const std::string& count_name,
                             int count);

// Whether the variables that identify the launcher are set.
bool has_torchrun(const Reader& reader);  // both RANK and WORLD_SIZE
bool has_slurm(const Reader& reader);
bool has_openmpi(const Reader& reader);
bool has_pmi(const Reader& reader);
bool has_lsf(const Reader& reader);

// Returns how many processes srun started, including this one; nullopt outside srun's steps.
std::optional<int> slurm_step_tasks(const Reader& reader);

// Each requires that its launcher was detected, and checks all values. master_address is empty if
// the launcher does not provide it. The caller handles MASTER_ADDR and MASTER_PORT.
Environment read_torchrun(const Reader& reader);
Environment read_slurm(const Reader& reader);
Environment read_openmpi(const Reader& reader);
Environment read_pmi(const Reader& reader);
Environment read_lsf(const Reader& reader);

}  // namespace troika::cluster
