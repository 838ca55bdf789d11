"""Logs of other monitors, in the form in which each tool writes them."""

from __future__ import annotations

from collections.abc import Sequence

# ruff: noqa: E501 - lines are as long as the tools write them

# -- dcgmi dmon ---------------------------------------------------------------------------------------------

WIDTHS = {"POWER": 18, "TOTEC": 24, "GPUTL": 18, "SMACT": 18, "FBUSD": 18, "DVNAM": 28, "XIDER": 13}
UNITS = {"POWER": " W", "TOTEC": " mJ"}


def left(names: str, *rows: str, again: int = 15) -> str:
    """A log as DCGM 3 and 4 print it: columns of fixed widths, the header again after every `again` lines."""
    columns = names.split()
    header = f"{'#Entity':<10}" + "".join(f"{name:<{WIDTHS[name]}}" for name in columns)
    units = f"{'ID':<10}" + "".join(f"{UNITS.get(name, ''):<{WIDTHS[name]}}" for name in columns)
    lines = []
    for number, row in enumerate(rows):
        if number % again == 0:
            lines += [header, units]
        entity, *values = (part.strip() for part in row.split(","))
        lines.append(f"{entity:<10}" + "".join(f"{v:<{WIDTHS[name]}}" for v, name in zip(values, columns, strict=True)))
    return "\n".join([*lines, ""])


def right(*rows: str) -> str:
    """The same as DCGM 2 prints it: everything at the right end of its column."""
    return "\n".join(["# Entity  GRACT  TENSO  POWER", "      Id                    W", *rows, ""])


# -- nvidia-smi dmon ----------------------------------------------------------------------------------------

SMI_ALL = """\
#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk  pviol  tviol     fb   bar1   ccpm  sbecc  dbecc    pci  rxpci  txpci
#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %      %      %      %      %    MHz    MHz      %   bool     MB     MB     MB   errs   errs   errs   MB/s   MB/s
 20260102   23:59:59      0    312     61     74     98     41      0      0      0      0   2619   1980      0      0  71234      4      0      0      0      2    120    310
 20260102   23:59:59      1     71     33      -      0      0      0      0      0      0   2619    345      0      0      3      4      0      -      -      0      0      0
 20260103   00:00:01      0    300     62     75     97     40      5      6      0      0   2619   1965      0      0  71234      4      0      0      0      2    120    310
 20260103   00:00:01      1     72     33      -      0      0      0      0      0      0   2619    345      0      0      3      4      0      -      -      0      0      0
"""
SMI_OLD = """\
# gpu   pwr  temp    sm   mem   enc   dec  mclk  pclk
# Idx     W     C     %     %     %     %   MHz   MHz
    0     -    50    91    66     0     0  3504  1784
    1     -    47     0     0     0     0  3504  1341
    0     -    51    94    68     0     0  3504  1784
    1     -    47     0     0     0     0  3504  1341
"""
SMI_GPM = """\
# gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk      gract     smutil      smocc     mmaact
# Idx      W      C      C      %      %    MHz    MHz      GPM:%      GPM:%      GPM:%      GPM:%
    0     70     43      -      0      1   2619    682          -          -          -          -
    0    512     50      -     99     44   2619   1905         99         97         31         64
"""
SMI_CSV = """\
#gpu, pwr, gtemp, mtemp, sm, mem, enc, dec, jpg, ofa, mclk, pclk
#Idx, W, C, C, %, %, %, %, %, %, MHz, MHz
0, 29, 47, -, 3, 1, 0, 0, 0, 0, 7000, 1185
1, 31, 48, -, 4, 1, 0, 0, 0, 0, 7000, 1185
0, 30, 47, -, 5, 1, 0, 0, 0, 0, 7000, 1185
"""

# -- nvidia-smi -q -x ---------------------------------------------------------------------------------------

UUIDS = [f"GPU-0a1b2c3d-0000-1111-2222-33334444555{n}" for n in range(4)]
SAME = """\
<product_name>{model}</product_name>
<serial>165052200382{n}</serial><uuid>{uuid}</uuid><minor_number>{n}</minor_number>
<vbios_version>92.00.36.00.02</vbios_version>
<pci><pci_bus_id>00000000:0{n}:00.0</pci_bus_id><replay_counter>3</replay_counter><tx_util>4000 KB/s</tx_util></pci>
<fan_speed>{fan}</fan_speed><performance_state>P0</performance_state>
<fb_memory_usage><total>81920 MiB</total><used>50 MiB</used><free>80999 MiB</free></fb_memory_usage>
<utilization><gpu_util>98 %</gpu_util><memory_util>41 %</memory_util><encoder_util>1 %</encoder_util>
<decoder_util>2 %</decoder_util></utilization>
<temperature><gpu_temp>6{n} C</gpu_temp><gpu_temp_max_threshold>92 C</gpu_temp_max_threshold>
<gpu_temp_slow_threshold>89 C</gpu_temp_slow_threshold><gpu_temp_max_gpu_threshold>85 C</gpu_temp_max_gpu_threshold>
<memory_temp>{memory_temp}</memory_temp></temperature>
<clocks><graphics_clock>1275 MHz</graphics_clock><sm_clock>1275 MHz</sm_clock><mem_clock>1593 MHz</mem_clock></clocks>
<max_clocks><sm_clock>1410 MHz</sm_clock><mem_clock>1593 MHz</mem_clock></max_clocks>
<supported_clocks><supported_mem_clock><value>1593 MHz</value></supported_mem_clock></supported_clocks>
"""
# What is different in logs of drivers 418, 535 and 590.
OLD = """\
<clocks_throttle_reasons><clocks_throttle_reason_gpu_idle>Not Active</clocks_throttle_reason_gpu_idle>
<clocks_throttle_reason_sw_power_cap>Active</clocks_throttle_reason_sw_power_cap>
<clocks_throttle_reason_hw_thermal_slowdown>Active</clocks_throttle_reason_hw_thermal_slowdown></clocks_throttle_reasons>
<ecc_errors><volatile><single_bit><device_memory>5</device_memory><total>7</total></single_bit>
<double_bit><total>1</total></double_bit></volatile>
<aggregate><single_bit><total>99</total></single_bit></aggregate></ecc_errors>
<power_readings><power_draw>251.25 W</power_draw><power_limit>280.00 W</power_limit>
<default_power_limit>300.00 W</default_power_limit><enforced_power_limit>275.00 W</enforced_power_limit>
<min_power_limit>100.00 W</min_power_limit><max_power_limit>310.00 W</max_power_limit></power_readings>
"""
MIDDLE = """\
<clocks_event_reasons><clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle></clocks_event_reasons>
<ecc_errors><volatile><sram_correctable>1</sram_correctable><sram_uncorrectable>0</sram_uncorrectable>
<dram_correctable>6</dram_correctable><dram_uncorrectable>1</dram_uncorrectable></volatile></ecc_errors>
<remapped_rows><remapped_row_corr>2</remapped_row_corr><remapped_row_unc>1</remapped_row_unc>
<remapped_row_pending>No</remapped_row_pending><remapped_row_failure>Yes</remapped_row_failure></remapped_rows>
<gpu_power_readings><power_draw>251.25 W</power_draw><current_power_limit>275.00 W</current_power_limit>
<requested_power_limit>280.00 W</requested_power_limit><default_power_limit>300.00 W</default_power_limit>
<min_power_limit>100.00 W</min_power_limit><max_power_limit>310.00 W</max_power_limit></gpu_power_readings>
<module_power_readings><power_draw>999.00 W</power_draw></module_power_readings>
"""
NEW = """\
<clocks_event_reasons><clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap></clocks_event_reasons>
<clocks_event_reasons_counters><clocks_event_reasons_counters_sw_power_cap>2548 us</clocks_event_reasons_counters_sw_power_cap>
<clocks_event_reasons_counters_hw_power_brake>5 us</clocks_event_reasons_counters_hw_power_brake></clocks_event_reasons_counters>
<ecc_errors><volatile><sram_correctable>1</sram_correctable><sram_uncorrectable_parity>0</sram_uncorrectable_parity>
<sram_uncorrectable_secded>1</sram_uncorrectable_secded><dram_correctable>6</dram_correctable>
<dram_uncorrectable>N/A</dram_uncorrectable></volatile></ecc_errors>
<vgpu_software_licensed_product><license_status>Licensed (Expiry: N/A)</license_status></vgpu_software_licensed_product>
<gpu_power_readings><power_state>Requested functionality has been deprecated</power_state>
<average_power_draw>250.00 W</average_power_draw><instant_power_draw>251.25 W</instant_power_draw>
<current_power_limit>275.00 W</current_power_limit></gpu_power_readings>
"""
MIG = """\
<mig_devices><mig_device><index>0</index><gpu_instance_id>3</gpu_instance_id><compute_instance_id>0</compute_instance_id>
<fb_memory_usage><total>19968 MiB</total><used>12 MiB</used><free>19955 MiB</free></fb_memory_usage></mig_device>
<mig_device><index>1</index><gpu_instance_id>4</gpu_instance_id><compute_instance_id>1</compute_instance_id>
<fb_memory_usage><total>19968 MiB</total><used>13 MiB</used><free>19954 MiB</free></fb_memory_usage></mig_device></mig_devices>
"""


def gpu(n: int, *parts: str, model: str = "NVIDIA A100-SXM4-80GB", fan: str = "N/A", memory_temp: str = "N/A") -> str:
    """The element of one GPU."""
    same = SAME.format(n=n, uuid=UUIDS[n], model=model, fan=fan, memory_temp=memory_temp)
    return f'<gpu id="00000000:0{n}:00.0">\n{same}{"".join(parts)}</gpu>\n'


def smi(*gpus: str, when: str = "Fri Aug  4 11:44:30 2023", attached: int | None = None) -> str:
    """A log."""
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"<timestamp>{when}</timestamp><driver_version>535.54.03</driver_version>\n"
        f"<attached_gpus>{len(gpus) if attached is None else attached}</attached_gpus>\n{''.join(gpus)}</nvidia_smi_log>\n"
    )


# -- Omnistat -----------------------------------------------------------------------------------------------

LABELS = ("metric", "instance", "card")
SERIES = [
    (metric, host, card)
    for metric in ("rocm_utilization_percentage", "rocm_average_socket_power_watts", "rocm_temperature_celsius")
    for host in ("node01", "node02:8001")
    for card in ("0", "1")
]


def omnistat(series: Sequence[tuple[str, ...]], rows: Sequence[str], labels: tuple[str, ...] = LABELS) -> str:
    """An export as pandas writes columns of several levels."""
    head = [",".join([label, *(one[n] for one in series)]) for n, label in enumerate(labels)]
    return "\n".join([*head, "timestamp" + "," * len(series), *rows, ""])
