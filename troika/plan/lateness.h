// The time for which replicas wait for the latest of them.
#pragma once

namespace troika::plan {

// Returns the expected maximum of `count` independent standard normal numbers: by how many standard
// deviations of a time the latest of so many replicas is later than their mean.
double expected_maximum(int count);

}  // namespace troika::plan
