// One JSON line per yardstick, as bench/run.sh collects them.
#pragma once

#include <string>
#include <vector>

namespace perdure::bench {

struct Yardstick {
  std::string id;
  std::string what;      // which case of it: "25 MiB, 4 ranks"
  std::string unit;      // more is better unless less_is_better
  std::string limit_is;  // the rival, or the physical limit, measured in the same run
  double goal = 1.0;     // for the ratio value / limit
  bool less_is_better = false;
};

double Median(std::vector<double> samples);

// What other programs took of the machine's CPUs while something was measured.
class Others {
 public:
  // Above this share a sample says more about them than about us.
  static constexpr double kShareMax = 0.05;

  Others();
  // Since construction; 1 is every CPU.
  double Share() const;

 private:
  double begin_ = 0;  // CPU seconds of others
  double begin_total_ = 0;
};

// Pairs of a value and the limit beside it, one right after the other.
class Pairs {
 public:
  // `others`: what other programs took meanwhile.
  void Add(double value, double limit, double others);
  // How many were measured while others kept away.
  int undisturbed() const;
  // Those, if there are at least kUndisturbedMin; else all.
  static constexpr int kUndisturbedMin = 5;
  void Chosen(std::vector<double>* values, std::vector<double>* limits, double* others) const;

 private:
  struct Pair {
    double value = 0;
    double limit = 0;
    double others = 0;
  };
  std::vector<Pair> pairs_;
};

// Medians of interleaved repeats. `ratio` is the median of the pairs' ratios, so that what slows
// down both of a pair does not count; `spread` is the middle half of those ratios. `others` is the
// share of the CPUs that other programs took.
void Report(const Yardstick& yardstick, const Pairs& pairs);
// values[i] was measured next to limits[i].
void Report(const Yardstick& yardstick, const std::vector<double>& values,
            const std::vector<double>& limits);

// Calls `measure(repeat)` -> (value, limit), first `warm_ups` times without counting, until
// `repeats` pairs were undisturbed, at most 2 x `repeats` times.
template <class Measure>
Pairs MeasurePairs(int warm_ups, int repeats, Measure measure) {
  Pairs pairs;
  for (int i = -warm_ups; pairs.undisturbed() < repeats && i < 2 * repeats; ++i) {
    const Others others;
    const auto [value, limit] = measure(i + warm_ups);
    if (i >= 0) pairs.Add(value, limit, others.Share());
  }
  return pairs;
}

}  // namespace perdure::bench
