def main() -> None:
    print("whorl")
