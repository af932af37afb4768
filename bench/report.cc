#include "bench/report.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

namespace perdure::bench {
namespace {

std::string Machine() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  std::string line;
  std::string model = "unknown CPU";
  while (std::getline(cpuinfo, line)) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      model = line.substr(colon + 2);
      break;
    }
  }
  return fmt::format("{} x {}", std::thread::hardware_concurrency(), model);
}

// CPU seconds that the whole machine has spent since it started, busy and in all.
std::pair<double, double> MachineSeconds() {
  std::ifstream stat("/proc/stat");
  std::string cpu;
  double user = 0;
  double nice = 0;
  double system = 0;
  double idle = 0;
  double wait = 0;
  stat >> cpu >> user >> nice >> system >> idle >> wait;
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const double busy = (user + nice + system) / ticks;
  return {busy, busy + (idle + wait) / ticks};
}

// Those of this process and of the children that have ended.
double OwnSeconds() {
  double seconds = 0;
  for (const int who : {RUSAGE_SELF, RUSAGE_CHILDREN}) {
    struct rusage usage {};
    ::getrusage(who, &usage);
    seconds += static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
  }
  return seconds;
}

double Load() {
  std::ifstream loadavg("/proc/loadavg");
  double load = 0;
  loadavg >> load;
  return load;
}

double Quantile(std::vector<double> samples, double at) {
  std::sort(samples.begin(), samples.end());
  const double place = at * static_cast<double>(samples.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, samples.size() - 1);
  const double share = place - static_cast<double>(below);
  return samples[below] * (1 - share) + samples[above] * share;
}

double Rounded(double value) {
  if (value == 0) return 0;
  const double scale = std::pow(10.0, 3 - std::floor(std::log10(std::fabs(value))));
  return std::round(value * scale) / scale;
}

void Print(const Yardstick& yardstick, const std::vector<double>& values,
           const std::vector<double>& limits, std::optional<double> others) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < values.size(); ++i) ratios.push_back(values[i] / limits[i]);
  const double ratio = Quantile(ratios, 0.5);
  const bool met = yardstick.less_is_better ? ratio <= yardstick.goal : ratio >= yardstick.goal;
  nlohmann::ordered_json line = {
      {"id", yardstick.id},
      {"case", yardstick.what},
      {"value", Rounded(Quantile(values, 0.5))},
      {"unit", yardstick.unit},
      {"limit", Rounded(Quantile(limits, 0.5))},
      {"limit_is", yardstick.limit_is},
      {"ratio", Rounded(ratio)},
      {"goal", yardstick.goal},
      {"less_is_better", yardstick.less_is_better},
      {"met", met},
      {"spread", Rounded(Quantile(ratios, 0.75) - Quantile(ratios, 0.25))},
      {"repeats", values.size()}};
  if (others.has_value()) line["others"] = Rounded(*others);
  line["load"] = Load();
  line["machine"] = Machine();
  std::puts(line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

double Median(std::vector<double> samples) {
  return Quantile(std::move(samples), 0.5);
}

Others::Others() {
  const auto [busy, total] = MachineSeconds();
  begin_ = busy - OwnSeconds();
  begin_total_ = total;
}

double Others::Share() const {
  const auto [busy, total] = MachineSeconds();
  const double passed = total - begin_total_;
  if (passed <= 0) return 0;
  return std::clamp((busy - OwnSeconds() - begin_) / passed, 0.0, 1.0);
}

void Pairs::Add(double value, double limit, double others) {
  pairs_.push_back({value, limit, others});
}

int Pairs::undisturbed() const {
  return static_cast<int>(std::count_if(pairs_.begin(), pairs_.end(), [](const Pair& pair) {
    return pair.others <= Others::kShareMax;
  }));
}

void Pairs::Chosen(std::vector<double>* values, std::vector<double>* limits, double* others) const {
  const bool enough = undisturbed() >= kUndisturbedMin;
  std::vector<double> shares;
  for (const Pair& pair : pairs_) {
    if (enough && pair.others > Others::kShareMax) continue;
    values->push_back(pair.value);
    limits->push_back(pair.limit);
    shares.push_back(pair.others);
  }
  *others = Median(shares);
}

void Report(const Yardstick& yardstick, const Pairs& pairs) {
  std::vector<double> values;
  std::vector<double> limits;
  double others = 0;
  pairs.Chosen(&values, &limits, &others);
  Print(yardstick, values, limits, others);
}

void Report(const Yardstick& yardstick, const std::vector<double>& values,
            const std::vector<double>& limits) {
  Print(yardstick, values, limits, std::nullopt);
}

}  // namespace perdure::bench
